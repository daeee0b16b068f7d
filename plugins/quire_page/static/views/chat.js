// The playground for conversations: one model, or two side by side.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";
import { DEFAULTS, chatBody, messagesOf } from "../app/chat_body.js";
import { PATH, useConversation } from "../app/conversation.js";
import { chatChoices, choicesFor, chosen, modelOf } from "../app/server.js";
import { CopyButtons } from "../parts/copy.js";
import { useFields } from "../parts/fields.js";
import { ChatSettings } from "./chat_settings.js";
import { Composer } from "./composer.js";
import { Turn } from "./turn.js";

export function Chat({ server, wanted, active }) {
  const [fields, change] = useFields("chat", DEFAULTS);
  const choices = chatChoices(server);
  const first = chosen(choices, fields.model);
  const second = chosen(choices, fields.other);
  const models = fields.compare ? [first, second] : [first];
  const talk = useConversation(fields, models);
  const end = useRef(null);

  useEffect(() => {
    if (wanted) change({ model: wanted.model });
  }, [wanted]);
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [talk.turns.length]);
  useEffect(() => {
    if (!active) return;
    const onKey = (event) => {
      if (event.key === "Escape" && talk.running) talk.stop();
      if (event.altKey && event.code === "KeyN") {
        event.preventDefault();
        talk.clear();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });

  const seesPictures = models.every((name) => modelOf(server, name)?.modalities.includes("image"));
  const ears = choicesFor(server, ["transcribe"])[0]?.model.id;
  const last = talk.turns.at(-1);
  const finished = last && !talk.running && `${last.answers.map((answer) => answer.model).join(" and ")} answered.`;

  return html`
    <div class="chat">
      <section class="talk" aria-label="Conversation">
        <div class="turns" role="log" aria-live="off" aria-busy=${talk.running} tabindex="0">
          ${!talk.turns.length && html`<${Welcome} models=${models} seesPictures=${seesPictures} />`}
          ${talk.turns.map(
            (turn, i) => html`
              <${Turn}
                key=${i}
                turn=${turn}
                json=${fields.format === "object" || fields.format === "schema"}
                onResults=${i === talk.turns.length - 1 && ((side, results) => talk.sendResults(i, side, results))}
              />
            `,
          )}
          <div ref=${end}></div>
        </div>
        <p class="off-screen" role="status">${finished}</p>
        <${Composer}
          running=${talk.running}
          ready=${models.every(Boolean)}
          seesPictures=${seesPictures}
          ears=${ears}
          onSend=${talk.send}
          onStop=${talk.stop}
        />
        <div class="below">
          <button
            type="button"
            class="quiet"
            onClick=${talk.clear}
            disabled=${!talk.turns.length}
          >
            New conversation
          </button>
          <${CopyButtons} path=${PATH} body=${() => chatBody(fields, first, wireOf(talk.turns))} />
        </div>
      </section>
      <${ChatSettings} fields=${fields} change=${change} choices=${choices} first=${first} second=${second} />
    </div>
  `;
}

// What the copied request asks: the conversation up to its last question.
function wireOf(turns) {
  if (!turns.length) return [{ role: "user", content: "Hello!" }];
  const last = turns.at(-1);
  return messagesOf([...turns.slice(0, -1), { ...last, answers: [] }], 0);
}

const Welcome = ({ models, seesPictures }) => html`
  <div class="welcome">
    <h1>Chat</h1>
    <p>Each message goes to <strong>${models.filter(Boolean).join(" and ") || "no model: none is served"}</strong>.</p>
    ${seesPictures && html`<p>Pictures may be dropped here, or pasted.</p>`}
  </div>
`;
