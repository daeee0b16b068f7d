// A request of a view: whether it runs, what it gave, and how to stop it.

import { useRef, useState } from "../vendor/preact-htm.js";

// [state, run, stop]. run(work): `work` gets a signal and a function that shows a result before the end.
export function useRequest() {
  const [state, setState] = useState({ running: false, result: null, error: null });
  const stopping = useRef(null);
  const run = async (work) => {
    stopping.current?.abort();
    const controller = new AbortController();
    stopping.current = controller;
    setState({ running: true, result: null, error: null });
    const show = (changed) => {
      if (stopping.current === controller) setState((before) => ({ ...before, ...changed }));
    };
    try {
      show({ result: await work(controller.signal, (result) => show({ result })), running: false });
    } catch (error) {
      show({ running: false, error: error.name === "AbortError" ? null : error });
    }
  };
  return [state, run, () => stopping.current?.abort()];
}

// Enter with Ctrl or Command in a form sends it.
export function sendOnEnter(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
}
