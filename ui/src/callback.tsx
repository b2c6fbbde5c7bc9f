// The form of a callback: where it goes, without the payload.

import { isObject, parse, type Json } from './json';
import { Area, Select, Text } from './parts';
import type * as spec from './spec';

export type Object = { [name: string]: Json };
type Type = spec.Callback['type'];

export interface CallbackForm {
  type: Type; url: string; method: string; queue: string; exchange: string; routingKey: string; topic: string; recordKey: string;
  headers: string; envelope: string; signing: string;
}

export const blankCallback: CallbackForm = {
  type: 'http', url: '', method: '', queue: '', exchange: '', routingKey: '', topic: '', recordKey: '', headers: '', envelope: '', signing: '',
};

// names are the members of the data that the form has, in their order, by the names in the form.
const names: Record<Type, [keyof CallbackForm, string][]> = {
  http: [['url', 'url'], ['method', 'method']],
  rabbitmq: [['queue', 'queue'], ['exchange', 'exchange'], ['routingKey', 'routingKey']],
  kafka: [['topic', 'topic'], ['recordKey', 'key']],
};

export function put(to: Object, values: Record<string, string>) {
  for (const [name, value] of Object.entries(values)) if (value.trim()) to[name] = value.trim();
}

// headersOf reads headers, one on each line. A JSON object with a secret refers to that secret.
function headersOf(text: string): Object {
  const all: Object = {};
  for (const line of text.split('\n')) {
    const colon = line.indexOf(':');
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).trim();
    all[line.slice(0, colon).trim()] = value;
    if (!value.startsWith('{')) continue;
    try {
      const reference = parse(value);
      if (isObject(reference) && 'secret' in reference) all[line.slice(0, colon).trim()] = reference;
    } catch { /* it is a plain value */ }
  }
  return all;
}

const headersText = (headers: Object) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`).join('\n');

// callbackForm is the form of a callback that there is.
export function callbackForm(c: spec.Callback): CallbackForm {
  const f: CallbackForm = { ...blankCallback, type: c.type, envelope: c.envelope ?? '', signing: c.signing ?? '' };
  const data = c.data as Object;
  for (const [name, member] of names[c.type]) if (typeof data[member] === 'string') Object.assign(f, { [name]: data[member] });
  if (isObject(data.headers)) f.headers = headersText(data.headers);
  return f;
}

// callbackOf is the callback of a form. Members of one that there was which the form does not have stay.
export function callbackOf(f: CallbackForm, was?: spec.Callback): { type: Type; data: Object; envelope?: string; signing?: string } {
  const data: Object = {};
  for (const [name, member] of names[f.type]) put(data, { [member]: f[name] });
  const before = was?.type === f.type ? was.data as Object : {};
  if (isObject(before.headers) && headersText(before.headers) === f.headers) data.headers = before.headers;
  else if (Object.keys(headersOf(f.headers)).length > 0) data.headers = headersOf(f.headers);
  const known = new Set(['headers', ...names[f.type].map(([, member]) => member)]);
  for (const [name, value] of Object.entries(before)) if (!known.has(name)) data[name] = value;
  return {
    type: f.type, data, ...(f.envelope ? { envelope: f.envelope } : {}), ...(f.signing.trim() ? { signing: f.signing.trim() } : {}),
  };
}

// CallbackFields are the fields, below the choice of the type. Children stand between where it goes and the rest.
export function CallbackFields({ of: f, set, envelopes, children }: {
  of: CallbackForm; set: (change: Partial<CallbackForm>) => void; envelopes: (string | [string, string])[]; children?: preact.ComponentChildren;
}) {
  return (
    <>
      {f.type === 'http' && <><Text label="URL" value={f.url} set={(url) => set({ url })} placeholder="https://example.com/hook" />
        <Select label="Method" value={f.method} set={(method) => set({ method })} options={[['', 'POST'], 'PUT', 'PATCH']} /></>}
      {f.type === 'rabbitmq' && <><Text label="Queue" value={f.queue} set={(queue) => set({ queue })} hint="or an exchange:" />
        <div class="row"><Text label="Exchange" value={f.exchange} set={(exchange) => set({ exchange })} /><Text label="Routing key" value={f.routingKey} set={(routingKey) => set({ routingKey })} /></div></>}
      {f.type === 'kafka' && <div class="row"><Text label="Topic" value={f.topic} set={(topic) => set({ topic })} />
        <Text label="Key of the record" value={f.recordKey} set={(recordKey) => set({ recordKey })} placeholder="the job’s key" /></div>}
      {children}
      <details open={!!(f.headers || f.envelope || f.signing)}><summary>Headers, envelope and signature</summary>
        <Area label="Headers" value={f.headers} set={(headers) => set({ headers })} rows={2}
          hint={<>Name: value, one on each line; <code>{'{"secret": "NAME"}'}</code> stands for a secret’s value.</>} />
        <Select label="Envelope" value={f.envelope} set={(envelope) => set({ envelope })} options={envelopes} />
        <Text label="Signing secret" value={f.signing} set={(signing) => set({ signing })} placeholder="default" />
      </details>
    </>
  );
}
