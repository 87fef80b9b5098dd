"""The web page: its files, and the addresses at which a browser shows them. It depends on nothing but the standard library.

assets       the files of the page
squeeze      leave out of scripts what a browser does not need
short_names  shorten the names of a script
script_tokens  read a script as tokens
addresses    the page's addresses, and for each the JSON it shows
single_file  the page and its documents as one file
policy       the headers that keep a page with foreign texts safe

`assets/` is served without a build step, each script squeezed when it is first asked for; `store.api.routes.web.page` serves it. Conventions:

index.html         the only document; the address says which view it shows
app.css            all styles: custom properties for both themes, classes by component
app.js             the frame: header, routes, keys. Imports a view when its address is opened
core/html.js       `html`, `render` and hooks, from the vendored library
core/api.js        `get`, `post`, `patch`, `put`, `del`, `events`; errors are `Problem`. A document embedded as
                   `<script type="application/json" id="document">` answers instead of the network
core/router.js     `navigate`, `useLocation`, `Link`: the whole state of a view is in the address
core/format.js     money, tokens, durations, sizes, times
core/keys.js       `useKeys`: keys of a view, which the help shows
core/parts.js      components that several views use
core/theme.js      light or dark, before the first paint
views/*.js         one component for each kind of address, as the default export, with the props `params` and `query`
vendor/            modules of others, each with version, licence and digest in `vendored.json`

What was recorded is foreign text. It is shown as text nodes: nothing parses HTML, the policy allows no inline script and
style, and no Trusted Types policy exists. Styles are set by classes, SVG attributes or objects (`style=${{…}}`).
"""
