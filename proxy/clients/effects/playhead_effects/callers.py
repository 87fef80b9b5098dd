"""Tell the program's own code from installed packages, and these from the standard library and from this hook, by the file of a frame."""

import json
import os
import sys
import sysconfig

IGNORED, LIBRARY, PROGRAM = 0, 1, 2

_HERE = os.path.dirname(os.path.abspath(__file__))
_paths = sysconfig.get_paths()
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = tuple(
    {os.path.realpath(_paths[name]) + os.sep for name in ("stdlib", "platstdlib")} | {_paths["stdlib"] + os.sep}
)
_OWN = tuple(name for name in os.environ.get("PLAYHEAD_EFFECTS_PACKAGES", "").split(",") if name)
_CUT = os.getcwd() + os.sep if hasattr(os, "getcwd") else ""

_CALL_BACK = tuple(
    os.path.join(*names)
    for names in (
        ("concurrent", "futures", "thread.py"),
        ("asyncio", "events.py"),
        ("threading.py",),
        ("playhead_effects", "tasks.py"),
    )
)
"""Modules that call what the program gave them, and read nothing themselves."""

INSIDE_FILES = frozenset(
    (
        *(
            "pathlib",
            "pathlib._local",
            "pathlib._abc",
            "pathlib._os",
            "pathlib.types",
            "os",
            "glob",
            "fnmatch",
            "shutil",
            "io",
            "codecs",
        ),
        *(
            "tokenize",
            "configparser",
            "fileinput",
            "gzip",
            "bz2",
            "lzma",
            "tarfile",
            "zipfile",
            "xml.etree.ElementTree",
        ),
    )
)
"""Modules of the standard library that read files and directories for whoever calls them."""

_left_out = ()
"""Files and directories whose own effects are left alone."""

_PLACES = sorted(json.loads(os.environ.get("PLAYHEAD_EFFECTS_PLACES") or "[]"), key=lambda one: -len(one[0]))
"""Directories that differ from one machine or test session to the next, and what they are called in arguments."""

_APART = tuple(one for one in os.environ.get("PLAYHEAD_EFFECTS_APART", "").split(os.pathsep) if one)
"""Directories whose files are no effects: a test makes them itself."""

_KEYS = tuple(
    os.path.dirname(os.path.realpath(one)) + os.sep for one in (os.environ.get("PLAYHEAD_API_TOKEN_FILE"),) if one
)
"""The directory of Playhead's own keys and tokens, which no recording may hold."""

_OTHER_FILES = (
    *(*_STANDARD, *_APART, *_KEYS),
    *(sys.prefix + os.sep, sys.base_prefix + os.sep),
)
"""Beginnings of the paths of files that are no effects."""

_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - compared, not written
"""Where files are as in any directory, often temporary ones."""

classes = {}
"""The class of each file that was asked about."""


def classify(file):
    """Return the class of a source file, and remember it."""
    classes[file] = found = _class_of(file)
    return found


def class_of(file):
    """Return the class of a source file."""
    found = classes.get(file)
    return classify(file) if found is None else found


def is_of_hook(file):
    """Whether a source file is of this hook."""
    return file.startswith(_HERE)


def is_standard(file):
    """Whether a source file is of the standard library."""
    return file.startswith(_STANDARD) or os.path.realpath(file).startswith(_STANDARD)


def leave_out(places):
    """Leave the effects of these files, and of files in these directories, alone from now on."""
    global _left_out
    _left_out = tuple(places)
    classes.clear()


def without_places(text):
    """Return an argument with directories that differ between machines replaced by what they are called."""
    for path, name in _PLACES:
        text = text.replace(path, name)
    return text


def _class_of(file):
    if _left_out and file.startswith(_left_out):
        return IGNORED
    if file.endswith(_CALL_BACK) and file.startswith((_HERE, *_STANDARD)):
        return PROGRAM
    if file.startswith(("<frozen", _HERE)):
        return IGNORED
    if file.startswith("<"):
        return PROGRAM  # -c, the prompt, exec
    if file.startswith(_client_places()):
        return LIBRARY
    parts = file.split(os.sep)
    installed = next((place for place, part in enumerate(parts) if part in _INSTALLED), None)
    if installed is not None:
        package = parts[installed + 1].partition(".")[0] if len(parts) > installed + 1 else ""
        return PROGRAM if package in _OWN else LIBRARY
    return IGNORED if file.startswith(_STANDARD) or os.path.realpath(file).startswith(_STANDARD) else PROGRAM


def _client_places():
    """Return the directories of Playhead's own client, which is a package also where it is not installed."""
    modules = (sys.modules.get(name) for name in ("playhead", "pytest_playhead"))
    return tuple(place + os.sep for module in modules for place in getattr(module, "__path__", ()))


def is_program(frame):
    """Whether a frame is of the program itself."""
    file = frame.f_code.co_filename
    found = classes.get(file)
    return (classify(file) if found is None else found) == PROGRAM


def outside(frame, modules):
    """Return the nearest frame that is not in one of these modules of the standard library, and its class."""
    while frame is not None and frame.f_globals.get("__name__") in modules:
        frame = frame.f_back
    if frame is None:
        return None, IGNORED
    file = frame.f_code.co_filename
    found = classes.get(file)
    return frame, classify(file) if found is None else found


def place(code, line):
    """Return a file and line for people: relative to where the program was started, if it is below that."""
    file = code.co_filename
    return f"{file[len(_CUT) :] if _CUT and file.startswith(_CUT) else file}:{line}"


def is_of_interpreter(path):
    """Whether a file is of the interpreter, of installed packages or of Playhead, and its content no effect."""
    path = os.path.realpath(path)
    is_device = path.startswith(("/proc/", "/sys/", "/dev/")) and not path.startswith(_SHARED_MEMORY)
    return is_device or path.startswith(_OTHER_FILES) or any(part in _INSTALLED for part in path.split(os.sep))
