// "Copy as": a call as a command, code or a file. Secrets in it are names of environment variables.
import { html, useEffect, useState } from "../core/html.js";
import { get } from "../core/api.js";
import { Copy, Dialog, ErrorNote, Loading, Menu, Text } from "../core/parts.js";

export const FORMS = [
  ["curl", "curl", "a command for any shell"],
  ["python", "Python", "with httpx"],
  ["pytest", "pytest", "answered by the recording"],
  ["jsonl", "JSONL", "a bundle of this step"],
  ["har", "HAR", "an HTTP archive"],
  ["vcr", "VCR", "a cassette"],
];

const address = (call) => `/v1/calls/${encodeURIComponent(call)}/snippet`;

/** A menu that copies the call with this id. `opensNow` opens it, for the key `c`. */
export function CopyAs({ call, label = "Copy as ▾", isOpen = false, onClose }) {
  const [form, setForm] = useState(null);
  const items = FORMS.map(([id, name, note]) => ({ label: name, note, run: () => setForm(id) }));
  return html`<${Menu} label=${label} title="Copy as a command, code or a file" items=${items} isOpen=${isOpen} onClose=${onClose} />
    ${form && html`<${SnippetDialog} call=${call} form=${form} onClose=${() => setForm(null)} />`}`;
}

export function SnippetDialog({ call, form, onClose }) {
  const [{ snippet, error }, setState] = useState(/** @type {{snippet?: any, error?: any}} */ ({}));
  useEffect(() => {
    let isCurrent = true;
    get(address(call), { as: form }).then(
      (found) => isCurrent && setState({ snippet: found }),
      (problem) => isCurrent && setState({ error: problem }),
    );
    return () => { isCurrent = false; };
  }, [call, form]);
  const name = FORMS.find(([id]) => id === form)[1];
  return html`<${Dialog} title="Copy as ${name}" onClose=${onClose} isWide
    actions=${snippet && html`<button onClick=${() => save(snippet)}>Save ${snippet.file}</button><${Copy} text=${snippet.text} label="Copy" />`}>
    ${error ? html`<${ErrorNote} error=${error} />` : !snippet ? html`<${Loading} height="120px" />` : html`
      ${snippet.notes.length > 0 && html`<ul class="snippet-notes">${snippet.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>`}
      <div class="copied-text" tabindex="0" role="region" aria-label="The copy"><${Text} text=${snippet.text} className="code" first=${16384} /></div>`}
  </${Dialog}>`;
}

function save({ file, text }) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
