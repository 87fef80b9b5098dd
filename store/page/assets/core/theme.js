// Set the theme before the first paint. A classic script: a module would run after it.
(() => {
  const stored = (() => {
    try {
      return localStorage.getItem("playhead.theme");
    } catch {
      return null; // storage is forbidden here: follow the system
    }
  })();
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
