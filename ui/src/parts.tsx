// What several screens are made of.

import { signal } from '@preact/signals';
import type { ComponentChildren, JSX } from 'preact';
import { useCallback, useEffect, useId, useRef, useState } from 'preact/hooks';
import { Problem, session } from './client';
import { now, relative, show, zoneFor } from './time';

// usePoll loads something now and then again, while the page is seen. A load that is replaced is aborted.
export function usePoll<T>(load: (s: AbortSignal) => Promise<T>, seconds: number, deps: unknown[]) {
  const [state, setState] = useState<{ data?: T; error?: unknown; loaded: boolean }>({ loaded: false });
  const [turn, setTurn] = useState(0);
  const reload = useCallback(() => setTurn((t) => t + 1), []);
  const known = useRef('');
  useEffect(() => {
    let timer = 0, aborter = new AbortController(), ended = false, failures = 0;
    const key = JSON.stringify(deps);
    if (key !== known.current) setState({ loaded: false });
    known.current = key;
    const run = async () => {
      clearTimeout(timer);
      if (ended || document.visibilityState !== 'visible') return;
      aborter.abort();
      aborter = new AbortController();
      const mine = aborter;
      try {
        const data = await load(mine.signal);
        if (!mine.signal.aborted) setState({ data, loaded: true });
        failures = 0;
      } catch (error) {
        if (mine.signal.aborted) return;
        failures++;
        // What was read before stays, while the service can't be reached.
        const keeps = !(error instanceof Problem) || error.status >= 500 || error.status === 429;
        setState((s) => (keeps ? { ...s, error, loaded: true } : { error, loaded: true }));
      }
      const pause = failures > 0 && seconds === 0 ? 5 : seconds * Math.min(4, 1 + failures);
      if (!ended && session.value && pause > 0) timer = window.setTimeout(run, pause * 1000);
    };
    document.addEventListener('visibilitychange', run);
    void run();
    return () => {
      ended = true;
      clearTimeout(timer);
      aborter.abort();
      document.removeEventListener('visibilitychange', run);
    };
  }, [...deps, turn]);
  return { ...state, reload };
}

// Failure tells of an error, with the fields that it names.
export function Failure({ error, children }: { error: unknown; children?: ComponentChildren }) {
  if (!error) return null;
  const p = error instanceof Problem ? error : undefined;
  if (!p && !(error instanceof SyntaxError)) {
    return <div class="note bad" role="alert">The service can’t be reached.{children}</div>;
  }
  return (
    <div class="note bad" role="alert">
      <p>{p ? p.detail : String((error as Error).message)}{p?.requestId ? <small class="muted"> Request {p.requestId}</small> : null}</p>
      {p && p.fields.length > 0 && (
        <ul>{p.fields.map((f) => <li key={f.name + f.message}><code>{f.name || 'the body'}</code> {f.message}</li>)}</ul>
      )}
      {children}
    </div>
  );
}

// Loaded shows what was loaded, or why it was not.
export function Loaded<T>({ of, children }: { of: { data?: T; error?: unknown; loaded: boolean }; children: (data: T) => ComponentChildren }) {
  if (of.data !== undefined) return <>{children(of.data)}</>;
  if (of.loaded) return <Failure error={of.error} />;
  return <p class="muted loading">Loading…</p>;
}

// At shows an instant, and how far it is.
export function At({ at, zone, brief }: { at: string | undefined; zone?: string | undefined; brief?: boolean }) {
  if (!at) return <span class="muted">–</span>;
  return (
    <time dateTime={at} title={at}>
      {show(at, zoneFor(zone), !brief)}
      {!brief && <span class="muted ago"> {relative(at, now.value)}</span>}
    </time>
  );
}

const tones: Record<string, string> = {
  scheduled: 'info', paused: 'warn', finished: 'plain', delivered: 'good', retried: 'warn', released: 'plain', buried: 'bad',
  missed: 'bad', failed: 'bad', claimed: 'info', retrying: 'warn', open: 'bad', closed: 'good', up: 'good', down: 'bad',
  high: 'info', normal: 'plain', low: 'plain',
};

export const Badge = ({ children, tone }: { children: string; tone?: string }) =>
  <span class={`badge ${tone ?? tones[children] ?? 'plain'}`}>{children}</span>;

export function Card({ title, actions, children, wide }: {
  title: string; actions?: ComponentChildren; children: ComponentChildren; wide?: boolean;
}) {
  return (
    <section class={wide ? 'card wide' : 'card'}>
      <header><h2>{title}</h2>{actions && <div class="actions">{actions}</div>}</header>
      {children}
    </section>
  );
}

export function Table({ label, head, children, empty }: {
  label: string; head: ComponentChildren[]; children: JSX.Element[]; empty?: ComponentChildren;
}) {
  if (children.length === 0) return <p class="empty">{empty ?? 'There is nothing.'}</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr>{head.map((h, i) => <th key={i} scope="col">{h}</th>)}</tr></thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Copy({ text, what }: { text: string; what: string }) {
  return (
    <button type="button" class="small" onClick={async () => {
      try {
        await navigator.clipboard.writeText(text);
        say(`${what} is copied.`);
      } catch {
        say('The browser does not let this page copy; select the text instead.', 'bad');
      }
    }}>Copy {what}</button>
  );
}

// Field is a labelled input.
export function Field({ label, hint, children }: { label: string; hint?: ComponentChildren; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {hint && <small class="muted">{hint}</small>}
    </div>
  );
}

export function Text({ label, value, set, hint, type, list, required, placeholder }: {
  label: string; value: string; set: (v: string) => void; hint?: ComponentChildren; type?: 'text' | 'search' | 'password' | 'number' | 'datetime-local'; list?: string;
  required?: boolean; placeholder?: string;
}) {
  return (
    <Field label={label} hint={hint}>
      {(id) => <input id={id} type={(type ?? 'text') as 'text'} value={value} list={list} required={required} placeholder={placeholder}
        autocomplete="off" spellcheck={false} onInput={(e) => set(e.currentTarget.value)} />}
    </Field>
  );
}

export function Area({ label, value, set, hint, rows }: {
  label: string; value: string; set: (v: string) => void; hint?: ComponentChildren; rows?: number;
}) {
  return (
    <Field label={label} hint={hint}>
      {(id) => <textarea id={id} rows={rows ?? 4} value={value} spellcheck={false} onInput={(e) => set(e.currentTarget.value)} />}
    </Field>
  );
}

export function Select({ label, value, set, options, hint }: {
  label: string; value: string; set: (v: string) => void; options: (string | [string, string])[]; hint?: ComponentChildren;
}) {
  return (
    <Field label={label} hint={hint}>
      {(id) => (
        <select id={id} value={value} onChange={(e) => set(e.currentTarget.value)}>
          {options.map((o) => {
            const [v, text] = typeof o === 'string' ? [o, o] : o;
            return <option key={v} value={v} selected={v === value}>{text}</option>;
          })}
        </select>
      )}
    </Field>
  );
}

export function Check({ label, value, set }: { label: string; value: boolean; set: (v: boolean) => void }) {
  return <label class="check"><input type="checkbox" checked={value} onChange={(e) => set(e.currentTarget.checked)} /> {label}</label>;
}

// Messages at the edge of the page, which screen readers read out.
const messages = signal<{ id: number; text: string; tone: string }[]>([]);
let lastMessage = 0;

export function say(text: string, tone = 'good') {
  const id = ++lastMessage;
  messages.value = [...messages.value.slice(-3), { id, text, tone }];
  setTimeout(() => { messages.value = messages.value.filter((m) => m.id !== id); }, tone === 'bad' ? 12000 : 6000);
}

export const Messages = () => (
  <div class="messages" role="status" aria-live="polite">
    {messages.value.map((m) => <div key={m.id} class={`note ${m.tone}`}>{m.text}</div>)}
  </div>
);

// sayFailure tells of the failure of a change.
export function sayFailure(err: unknown) {
  if (err instanceof Problem) say([err.detail, ...err.fields.map((f) => `${f.name} ${f.message}`)].join(' '), 'bad');
  else say('The service can’t be reached. It is not known whether the change was made.', 'bad');
}

// act runs a change once at a time, and tells of its failure.
export function useAct() {
  const [busy, setBusy] = useState(false);
  const act = async (change: () => Promise<void>) => {
    setBusy(true);
    try {
      await change();
    } catch (err) {
      sayFailure(err);
    } finally {
      setBusy(false);
    }
  };
  return { busy, act };
}

// Dialog is a modal dialog; the browser keeps the focus in it, and closes it by Escape.
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null), id = useId();
  useEffect(() => {
    const dialog = ref.current!;
    if (!dialog.open) dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog ref={ref} aria-labelledby={id} onCancel={(e) => { e.preventDefault(); close(); }}>
      <header><h2 id={id}>{title}</h2><button type="button" class="small" aria-label="Close" onClick={close}>✕</button></header>
      {children}
    </dialog>
  );
}

// Confirm asks before a change that can't be undone.
export function Confirm({ title, children, action, danger, run, close }: {
  title: string; children: ComponentChildren; action: string; danger?: boolean; run: () => Promise<void>; close: () => void;
}) {
  const { busy, act } = useAct();
  return (
    <Dialog title={title} close={close}>
      <div>{children}</div>
      <div class="row end">
        <button type="button" onClick={close}>Keep it as it is</button>
        <button type="button" class={danger ? 'danger' : 'primary'} disabled={busy}
          onClick={() => act(async () => { await run(); close(); })}>{action}</button>
      </div>
    </Dialog>
  );
}

// Shown shows a secret that the service tells only once.
export function Shown({ title, secret, close, children }: { title: string; secret: string; close: () => void; children?: ComponentChildren }) {
  return (
    <Dialog title={title} close={close}>
      <p>This is shown once. The service keeps {children ?? 'only a hash of it'}, so nobody can read it again.</p>
      <pre class="secret" tabIndex={0}>{secret}</pre>
      <div class="row end"><Copy text={secret} what="it" /><button type="button" class="primary" onClick={close}>I have kept it</button></div>
    </Dialog>
  );
}

// usePages keeps the cursors of the pages before the present one.
export function usePages(reset: unknown[]) {
  const [cursors, setCursors] = useState<string[]>([]);
  const key = JSON.stringify(reset);
  const known = useRef(key);
  if (known.current !== key) {
    known.current = key;
    if (cursors.length > 0) setCursors([]);
  }
  return {
    cursor: cursors.at(-1),
    page: cursors.length + 1,
    next: (c: string) => setCursors([...cursors, c]),
    back: () => setCursors(cursors.slice(0, -1)),
  };
}

export function Pages({ of, next }: { of: ReturnType<typeof usePages>; next: string | undefined }) {
  if (of.page === 1 && !next) return null;
  return (
    <nav class="row pages" aria-label="Pages">
      <button type="button" disabled={of.page === 1} onClick={of.back}>← Previous</button>
      <span class="muted">Page {of.page}</span>
      <button type="button" disabled={!next} onClick={() => next && of.next(next)}>Next →</button>
    </nav>
  );
}

export const Code = ({ text, label }: { text: string; label: string }) =>
  <pre class="code" tabIndex={0} role="region" aria-label={label}><code>{text}</code></pre>;

export const jobLink = (key: string, rest = '') => `#/jobs/${encodeURIComponent(key)}${rest}`;
