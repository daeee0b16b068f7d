// A conversation with one model, or with two side by side: its turns, and the requests that answer them.
//
// A turn is {text, pictures, answers}; an answer is {model, steps, state, error}, and its steps are messages of the
// model and results of tools. state: "running", "done", "stopped" or "failed".

import { useRef, useState } from "../vendor/preact-htm.js";
import { follow, withChatEvent } from "./answers.js";
import { chatBody, messagesOf } from "./chat_body.js";
import { inFrames } from "./frames.js";
import { postStream } from "./requests.js";

export const PATH = "v1/chat/completions";

export function useConversation(fields, models) {
  const [turns, setTurns] = useState([]);
  const stopping = useRef(null);
  const running = turns.some(({ answers }) => answers.some((answer) => answer?.state === "running"));

  const change = (index, side, changed) =>
    setTurns((before) =>
      before.map((turn, i) =>
        i === index
          ? { ...turn, answers: turn.answers.map((one, s) => (s === side ? { ...one, ...changed } : one)) }
          : turn,
      ),
    );

  // Asks for the next step of an answer. history: the turns up to the one that is answered, which is the last.
  async function ask(history, side, signal) {
    const index = history.length - 1;
    const { model, steps } = history[index].answers[side];
    const show = inFrames((message) => change(index, side, { steps: [...steps, message] }));
    try {
      const body = chatBody(fields, model, messagesOf(history, side));
      const message = await follow(postStream(PATH, body, signal), withChatEvent, show);
      show.cancel();
      change(index, side, { steps: [...steps, message], state: "done" });
    } catch (error) {
      show.flush();
      change(index, side, error.name === "AbortError" ? { state: "stopped" } : { state: "failed", error });
    }
  }

  async function run(history, sides) {
    stopping.current = new AbortController();
    setTurns((before) => [...history, ...before.slice(history.length)]);
    await Promise.all(sides.map((side) => ask(history, side, stopping.current.signal)));
  }

  const begun = (model, steps = []) => ({ model, steps, state: "running", error: null });

  return {
    turns,
    running,
    send: (text, pictures) =>
      run([...turns, { text, pictures, answers: models.map((model) => begun(model)) }], [...models.keys()]),
    // results: the text that each tool call of the last step gave.
    sendResults(index, side, results) {
      const turn = turns[index];
      const { model, steps } = turn.answers[side];
      const { calls } = steps.at(-1);
      const given = calls.map(({ id, name }, i) => ({ role: "tool", id, name, content: results[i] }));
      const answers = turn.answers.map((one, s) => (s === side ? begun(model, [...steps, ...given]) : one));
      return run([...turns.slice(0, index), { ...turn, answers }], [side]);
    },
    stop: () => stopping.current?.abort(),
    clear() {
      stopping.current?.abort();
      setTurns([]);
    },
  };
}
