// What the page has on `window`, for `tsc --checkJs`. It is not served.
interface Window {
  /** The answer that `core/theme.js` has asked for before the modules run. */
  early?: { path: string; answer: Promise<Response> };
}
