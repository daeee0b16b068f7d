// What the server has: its models and adapters. The views share it and ask for it again after a change.

import { useCallback, useEffect, useState } from "../vendor/preact-htm.js";
import { getJson } from "./requests.js";

export function useServer() {
  const [state, setState] = useState({ models: [], states: [], adapters: [], version: "", error: null, loaded: false });
  const refresh = useCallback(async () => {
    try {
      const [models, states, adapters, { version }] = await Promise.all([
        getJson("ui/models"),
        getJson("ui/states"),
        getJson("v1/adapters"),
        getJson("version"),
      ]);
      const data = await Promise.all(states.data.map(detailed));
      setState({ models: models.data, states: data, adapters: adapters.data, version, error: null, loaded: true });
      return adapters.data;
    } catch (error) {
      setState((before) => ({ ...before, error, loaded: true }));
      return [];
    }
  }, []);
  useEffect(() => {
    refresh();
  }, []);
  return { ...state, refresh };
}

// The state of a model, with its progress or error if there is one; a model that is gone meanwhile has neither.
async function detailed(row) {
  if (row.state !== "loading" && row.state !== "failed") return row;
  const card = await getJson(`v1/models/${encodeURIComponent(row.id)}`).catch(() => null);
  return { ...row, progress: card?.progress ?? null, error: card?.error ?? null };
}

// The model of a name: its own, or that of an adapter's base model.
export function modelOf(server, name) {
  const base = server.adapters.find(({ id }) => id === name)?.parent ?? name;
  return server.models.find(({ aliases }) => aliases.includes(base));
}

// Models that chat, each with its adapters. A model that transcribes answers recordings, not messages.
export const chatChoices = (server) =>
  choicesFor(server, ["generate"]).filter(({ model }) => !model.tasks.includes("transcribe"));

// Models that can do one of the tasks, each with its adapters: [{model, adapters: [name]}].
export function choicesFor(server, tasks) {
  return server.models
    .filter((model) => tasks.some((task) => model.tasks.includes(task)))
    .map((model) => ({
      model,
      adapters: server.adapters
        .filter(({ parent, state }) => state === "ready" && model.aliases.includes(parent))
        .map(({ id }) => id),
    }));
}

// `name` if it may be chosen, else the first that may; "" if there is none.
export function chosen(choices, name) {
  const known = choices.flatMap(({ model, adapters }) => [model.id, ...adapters]);
  return known.includes(name) ? name : (known[0] ?? "");
}
