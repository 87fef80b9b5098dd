// Types of the vendored module, for `tsc --checkJs`. It is not served.
export type Inputs = readonly unknown[];
export const html: (texts: TemplateStringsArray, ...values: unknown[]) => any;
export function h(type: unknown, props: unknown, ...children: unknown[]): any;
export function render(tree: unknown, parent: Element): void;
export class Component {}
export function createContext(value: unknown): any;
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useReducer(reducer: (state: any, action: any) => any, initial: any): [any, (action: any) => void];
export function useEffect(work: () => void | (() => void), inputs?: Inputs): void;
export function useLayoutEffect(work: () => void | (() => void), inputs?: Inputs): void;
export function useRef<T = any>(initial: T | null): { current: T };
export function useMemo<T>(make: () => T, inputs: Inputs): T;
export function useCallback<T>(callback: T, inputs: Inputs): T;
export function useContext(context: any): any;
export function useErrorBoundary(onError?: (error: any) => void): [any, () => void];
