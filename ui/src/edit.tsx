// An edit of a job, as the merge patch that it is.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { at, call, Problem, session } from './client';
import { TimeLine } from './chart';
import { Effects, definition } from './job';
import { applyPatch, changes, isObject, mergePatch, parse, print, type Json } from './json';
import { Area, Card, Code, Failure, jobLink, say, Text, useAct } from './parts';
import type * as spec from './spec';
import { now, wall } from './time';

const brief = (v: Json | undefined) => {
  const text = v === undefined ? '' : JSON.stringify(v);
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
};

export function EditJob({ of }: { of: string }) {
  const path = `jobs/${at(of)}`;
  const [base, setBase] = useState<{ definition: { [name: string]: Json }; etag: string }>();
  const [text, setText] = useState('');
  const [error, setError] = useState<unknown>(), [overtaken, setOvertaken] = useState(false);
  const { busy, act } = useAct();

  const read = async () => {
    const got = await call<spec.Job>('GET', path, { ofJobs: true, query: { limit: 1 } });
    return { definition: definition(got.data), etag: got.etag };
  };
  useEffect(() => {
    read().then((b) => { setBase(b); setText(print(b.definition)); }, setError);
  }, [of]);

  const edited = useMemo(() => {
    try {
      const value = parse(text);
      return isObject(value) ? { value } : { error: 'It must be a JSON object.' };
    } catch (err) {
      return { error: `Not valid JSON: ${(err as Error).message}` };
    }
  }, [text]);
  const patch = base && edited.value ? mergePatch(base.definition, edited.value) : undefined;
  const listed = base && edited.value ? changes(base.definition, edited.value) : [];

  const rebase = () => act(async () => {
    const fresh = await read();
    if (patch) setText(print(applyPatch(fresh.definition, patch)));
    setBase(fresh);
    setOvertaken(false);
    setError(undefined);
  });
  const save = () => act(async () => {
    setError(undefined);
    try {
      const got = await call<spec.Accepted>('PATCH', path, {
        ofJobs: true, body: patch, headers: { 'Content-Type': 'application/merge-patch+json', 'If-Match': base!.etag },
      });
      const inFlight = got.data?.inFlight ? ` ${got.data.inFlight} occurrences were in flight.` : '';
      say(`The job is changed.${inFlight}`);
      location.hash = jobLink(of);
    } catch (err) {
      setError(err);
      setOvertaken(err instanceof Problem && (err.status === 412 || err.status === 409));
    }
  });

  return (
    <>
      <p class="crumbs"><a href="#/jobs">Jobs</a> › <a class="key" href={jobLink(of)}>{of}</a></p>
      <h1>Edit <span class="key">{of}</span></h1>
      {!base ? (error ? <Failure error={error} /> : <p class="muted">Loading…</p>) : (
        <div class="columns">
          <Card title="Definition">
            {edited.value && <QuickFields of={edited.value} set={(value) => setText(print(value))} />}
            <Area label="The job, as JSON" rows={24} value={text} set={setText} />
            {edited.error && <p class="note bad" role="alert">{edited.error}</p>}
          </Card>
          <div class="stack">
            <Card title="What changes">
              {listed.length === 0 ? <p class="empty">Nothing yet.</p> : (
                <ul class="changes">{listed.map((c) => (
                  <li key={c.path}><code>{c.path}</code>
                    {c.from !== undefined && <del>{brief(c.from)}</del>} {c.to !== undefined && <ins>{brief(c.to)}</ins>}</li>
                ))}</ul>
              )}
              {patch !== undefined && <><h3>The merge patch</h3><Code text={print(patch)} label="Merge patch" /></>}
              {overtaken ? (
                <div class="note warn" role="alert">
                  <p>Somebody has changed this job since you opened it; nothing of yours was stored.</p>
                  <div class="row">
                    <button type="button" class="primary" disabled={busy} onClick={rebase}>Apply my changes to the present job</button>
                  </div>
                </div>
              ) : <Failure error={error} />}
              <div class="row end">
                <a class="button" href={jobLink(of)}>Keep it as it is</a>
                <button type="button" class="primary" disabled={busy || patch === undefined} onClick={save}>Store the change</button>
              </div>
            </Card>
            <Preview job={edited.value} note="If the schedule changes, the job is replaced: instants that both definitions have fire once." />
          </div>
        </div>
      )}
    </>
  );
}

// QuickFields are members of a definition that are short texts, beside the whole of it.
function QuickFields({ of, set }: { of: { [name: string]: Json }; set: (v: { [name: string]: Json }) => void }) {
  const field = (name: string, label: string, placeholder = 'none') => {
    const value = of[name] ?? '';
    return typeof value === 'string' && (
      <Text key={name} label={label} value={value} placeholder={placeholder} set={(text) => {
        const { [name]: _, ...rest } = of;
        set(text ? { ...of, [name]: text } : rest);
      }} />
    );
  };
  return (
    <div class="pairs">
      {'crontab' in of && [field('crontab', 'Crontab'), field('timezone', 'Time zone', 'UTC')]}
      {'delay' in of && field('delay', 'Delay')}
      {field('spread', 'Spread')}
      {field('deadline', 'Deadline')}
      {field('expectBy', 'A check-in is expected within')}
    </div>
  );
}

// Preview shows the instants of a job that is not stored, as one types.
export function Preview({ job, note }: { job: { [name: string]: Json } | undefined; note?: string }) {
  const [preview, setPreview] = useState<spec.Preview>(), [error, setError] = useState<unknown>();
  const text = JSON.stringify(job ?? null);
  const aborter = useRef(new AbortController());
  useEffect(() => {
    if (!job || !session.value) return;
    const timer = setTimeout(async () => {
      aborter.current.abort();
      aborter.current = new AbortController();
      const mine = aborter.current;
      try {
        const got = await call<spec.Preview>('POST', 'preview', { ofJobs: true, body: job, query: { count: 12 }, signal: mine.signal });
        setPreview(got.data);
        setError(undefined);
      } catch (err) {
        if (!mine.signal.aborted) setError(err);
      }
    }, 150);
    return () => clearTimeout(timer);
  }, [text]);
  useEffect(() => () => aborter.current.abort(), []);
  const zone = typeof job?.timezone === 'string' ? job.timezone : undefined;
  return (
    <Card title="When it would fire">
      <div aria-live="polite">
        {error ? <Failure error={error} /> : preview ? (
          <>
            <TimeLine preview={preview} jobsZone={zone} now={now.value} />
            <ol class="instants">{preview.items.map((i, n) => (
              <li key={n}><time dateTime={i.timestamp} title={i.timestamp}>{wall(i.local)}</time>
                {i.step !== undefined && <small class="muted"> step {i.step}</small>}
                {i.subscribers && <small class="muted"> for {i.subscribers} subscribers</small>}
                {i.effect && <span class="badge warn">{i.effect}</span>}</li>
            ))}</ol>
            <p class="muted">Wall times in {preview.timezone}. {preview.crontab && <>With its values for H: <code>{preview.crontab}</code>.</>}</p>
            <Effects of={preview} />
            {note && <p class="muted">{note}</p>}
          </>
        ) : <p class="muted">…</p>}
      </div>
    </Card>
  );
}
