// Models that are being unloaded: each waits for its requests, which can be ended.

import { html, useState } from "../vendor/preact-htm.js";
import { postJson } from "../app/requests.js";

const PATH = "v1/unload_model";

// [leaving, unload]: the names of models that are being unloaded, and a function that unloads one.
export function useUnloads(refresh, onError) {
  const [leaving, setLeaving] = useState([]);
  const unload = async (name, force = false) => {
    onError(null);
    setLeaving((names) => [...names.filter((other) => other !== name), name]);
    try {
      const sent = postJson(PATH, { name, ...(force && { force: true }) });
      await refresh();
      await sent;
    } catch (error) {
      if (error.status !== 404) onError(error);
    }
    setLeaving((names) => names.filter((other) => other !== name));
    await refresh();
  };
  return [leaving, unload];
}

export const Leaving = ({ names, onForce }) =>
  names.map(
    (name) => html`
      <p key=${name} role="status" class="actions">
        <span>${name} is unloaded when its requests have ended.</span>
        <button type="button" aria-label="End the requests of ${name}" onClick=${() => onForce(name)}>
          End its requests
        </button>
      </p>
    `,
  );
