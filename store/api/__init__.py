"""The REST API (`/v1`).

app                  the application
server               run it on a socket
guard                tokens, projects and scopes, and protection against other web pages
gate                 what each route needs
content              keep prompts and answers from tokens that may not read them
deps                 what the routes work with
deferred_route       a route that is built when it is first needed
parameters           read and check the parameters of a request
replay_parameters    read and check the options of a replay or fork
answers              JSON, lists and bodies as responses
line_lists           lists as pages, or as lines
limits               what clients may take before they are answered
compression          compress answers for browsers
spilled_answers      large responses in files
helper_answers       responses that a helper process makes
render               make a response in a helper process
problems             errors as RFC 9457 problems
openapi              the OpenAPI document
routes               one module for each resource
"""

from importlib import import_module

from pydantic import BaseModel

# FastAPI's models of OpenAPI are never used: `openapi` writes the document. To build their validators at the import would
# take a tenth of the time in which a store server starts.
BaseModel.model_config["defer_build"] = True
try:
    import fastapi as fastapi
finally:
    del BaseModel.model_config["defer_build"]

# FastAPI asks of each parameter whether it is a model of Pydantic 1, and imports Pydantic 1 to find out. Nothing here is one.
vars(import_module("fastapi._compat.shared"))["is_pydantic_v1_model_class"] = lambda _: False
