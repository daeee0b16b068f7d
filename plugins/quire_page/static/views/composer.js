// Where a question is written: text, pictures, and speech that a model transcribes.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { isPicture, readPicture } from "../app/pictures.js";
import { record } from "../app/recording.js";
import { postJson } from "../app/requests.js";
import { Problem } from "../parts/fields.js";

export function Composer({ running, ready, seesPictures, ears, onSend, onStop }) {
  const [text, setText] = useState("");
  const [pictures, setPictures] = useState([]);
  const [error, setError] = useState(null);
  const box = useRef(null);

  const add = async (files) => {
    try {
      const read = await Promise.all([...files].filter(isPicture).map(readPicture));
      setPictures((before) => [...before, ...read]);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  const send = (event) => {
    event.preventDefault();
    if (running || !ready || (!text.trim() && !pictures.length)) return;
    onSend(text, pictures);
    setText("");
    setPictures([]);
    box.current.focus();
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  const onPaste = (event) => {
    if ([...event.clipboardData.files].some(isPicture)) {
      event.preventDefault();
      add(event.clipboardData.files);
    }
  };
  const onDrop = (event) => {
    event.preventDefault();
    add(event.dataTransfer.files);
  };

  return html`
    <form class="composer" onSubmit=${send} onDragOver=${(event) => event.preventDefault()} onDrop=${onDrop}>
      <${Problem} error=${error} />
      ${pictures.length > 0 && !seesPictures && html`<p class="hint">The model that is chosen takes no pictures.</p>`}
      <ul class="pictures" hidden=${!pictures.length}>
        ${pictures.map(
          ({ name, url }, i) => html`
            <li key=${url}>
              <img src=${url} alt=${name} />
              <button
                type="button"
                class="remove"
                aria-label="Remove ${name}"
                onClick=${() => setPictures(pictures.filter((_, j) => j !== i))}
              >
                ×
              </button>
            </li>
          `,
        )}
      </ul>
      <textarea
        ref=${box}
        id="question"
        rows="2"
        aria-label="Your message"
        placeholder="Write a message. Enter sends it, Shift+Enter begins a line."
        value=${text}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${onKey}
        onPaste=${onPaste}
      />
      <div class="actions">
        <label class="button quiet">
          <input
            type="file"
            accept="image/*"
            multiple
            class="off-screen"
            onChange=${(event) => add(event.target.files).then(() => (event.target.value = ""))}
          />
          Add pictures
        </label>
        <${Microphone}
          model=${ears}
          onText=${(said) => setText((before) => (before ? `${before} ${said}` : said))}
          onError=${setError}
        />
        <span class="gap"></span>
        ${
          running
            ? html`<button type="button" key="stop" class="primary" onClick=${onStop}>Stop</button>`
            : html`<button type="submit" key="send" class="primary" disabled=${!ready}>Send</button>`
        }
      </div>
    </form>
  `;
}

// model: the one that transcribes; undefined: none is served.
function Microphone({ model, onText, onError }) {
  const [state, setState] = useState("off");
  const [passed, setPassed] = useState(0);
  const recorder = useRef(null);
  useEffect(() => {
    if (state !== "recording") return;
    const timer = setInterval(() => setPassed((before) => before + 1), 1000);
    return () => clearInterval(timer);
  }, [state]);
  const toggle = async () => {
    try {
      onError(null);
      if (state === "off") {
        recorder.current = await record();
        setPassed(0);
        setState("recording");
      } else {
        setState("transcribing");
        onText(await transcribed(await recorder.current.stop(), model));
        setState("off");
      }
    } catch (problem) {
      setState("off");
      onError(problem);
    }
  };
  const label = { off: "Speak", recording: `Stop recording (${passed} s)`, transcribing: "Transcribing …" }[state];
  const title = model ? `Speech is transcribed by ${model}` : "No model that transcribes speech is served";
  const disabled = !model || state === "transcribing";
  return html`
    <button type="button" class="quiet ${state}" title=${title} disabled=${disabled} onClick=${toggle}>${label}</button>
  `;
}

async function transcribed(recording, model) {
  const form = new FormData();
  form.append("model", model);
  form.append("file", recording, "speech.wav");
  return (await postJson("v1/audio/transcriptions", form)).text.trim();
}
