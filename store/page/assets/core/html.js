// `html`, `render` and the hooks of Preact: the only library of the page.
export {
  html, h, render, Component, createContext,
  useState, useReducer, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useErrorBoundary,
} from "../vendor/htm-preact-standalone.module.js";
