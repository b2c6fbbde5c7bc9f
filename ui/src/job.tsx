// One job.

import { useState } from 'preact/hooks';
import { at, call, get, may, optional, Problem } from './client';
import { TimeLine } from './chart';
import { print, type Json } from './json';
import { At, Badge, Card, Code, Confirm, Failure, jobLink, Loaded, Pages, say, Table, useAct, usePages, usePoll } from './parts';
import type * as spec from './spec';
import { brief, now, number, secondsOf, show, span, wall, zoneFor } from './time';

// submitted are the fields of a job that its owner submits; all others are the service's. The types of the specification
// keep the list complete.
const submitted = {
  key: true, type: true, schedules: true, delay: true, crontab: true, steps: true, subscribers: true, timezone: true, startAt: true, endAt: true,
  past: true, deadline: true, spread: true, catchUp: true, expectBy: true, priority: true, destination: true, retry: true, callback: true,
} satisfies Record<keyof spec.JobForKey, true>;

// definition is the part of a job that its owner has submitted.
export function definition(j: spec.Job): { [name: string]: Json } {
  return Object.fromEntries(Object.entries(j).filter(([name]) => name in submitted)) as { [name: string]: Json };
}

export function kindOf(j: spec.Job): string {
  if (j.crontab) return j.crontab.startsWith('@every') ? `every ${j.crontab.slice(7)}` : `crontab ${j.crontab}`;
  if (j.delay) return `once, ${brief(j.delay)} after the submission`;
  if (j.steps) return `a sequence of ${j.steps.length} steps`;
  return j.schedules?.length === 1 ? 'at one instant' : `at ${number(j.schedules?.length ?? 0)} instants`;
}

function targetOf(c: spec.Callback): string {
  const d = c.data as Record<string, unknown>;
  switch (c.type) {
    case 'http': return `${String(d.method ?? 'POST')} ${String(d.url)}`;
    case 'rabbitmq': return d.queue ? `queue ${String(d.queue)}` : `exchange ${String(d.exchange)}, ${String(d.routingKey ?? '')}`;
    case 'kafka': return `topic ${String(d.topic)}`;
    default: return '';
  }
}

export function JobScreen({ of }: { of: string }) {
  const path = `jobs/${at(of)}`;
  const pages = usePages([of]);
  const load = usePoll(async (s) => call<spec.Job>('GET', path, { ofJobs: true, signal: s, query: { limit: 50, cursor: pages.cursor } }), 5, [of, pages.cursor]);
  const [picked, setPicked] = useState<string>();
  const [triggering, setTriggering] = useState(false);
  const [cancelling, setCancelling] = useState<string>(); // the entity tag of the job as it was seen
  const [answer, setAnswer] = useState<{ text: string; tone: string }>();
  const { busy, act } = useAct();
  const change = (name: 'pause' | 'resume', done: string) => act(async () => {
    await call('POST', `${path}/${name}`, { ofJobs: true });
    say(done);
    load.reload();
  });
  return (
    <>
      <p class="crumbs"><a href="#/jobs">Jobs</a></p>
      {answer && <p class={`note ${answer.tone}`} role="status">{answer.text}</p>}
      {load.data === undefined
        ? <><h1 class="key">{of}</h1><Loaded of={load}>{() => null}</Loaded></>
        : (() => {
          const j = load.data.data, { etag } = load.data, zone = j.timezone ?? undefined;
          return (
            <>
              <div class="row title">
                <h1 class="key">{j.key}</h1> <Badge>{j.state}</Badge>
                <span class="grow" />
                {may('operate') && j.state !== 'finished' && (j.pausedAt
                  ? <button type="button" disabled={busy} onClick={() => change('resume', 'The job is resumed.')}>Resume</button>
                  : <button type="button" disabled={busy} onClick={() => change('pause', 'The job is paused.')}>Pause</button>)}
                {may('operate') && <button type="button" disabled={busy} onClick={() => setTriggering(true)}>Fire now</button>}
                {may('submit') && <a class="button" href={jobLink(of, '/edit')}>Edit</a>}
                {may('submit') && <button type="button" class="danger" disabled={busy} onClick={() => setCancelling(etag)}>Cancel</button>}
              </div>
              {load.error !== undefined && <Failure error={load.error} />}
              <div class="columns">
                <Card title="What it does">
                  <dl>
                    <dt>Fires</dt><dd>{kindOf(j)}</dd>
                    {zone && <><dt>Zone</dt><dd>{zone}</dd></>}
                    <dt>Calls</dt><dd class="key">{j.callback.type}: {targetOf(j.callback)}</dd>
                    <dt>Next instant</dt><dd><At at={j.nextInstant} zone={zone} /></dd>
                    {j.pausedAt && <><dt>Paused</dt><dd><At at={j.pausedAt} zone={zone} /></dd></>}
                    {j.priority && <><dt>Priority</dt><dd>{j.priority}</dd></>}
                    {j.deadline && <><dt>Deadline</dt><dd>{brief(j.deadline)}</dd></>}
                    {j.spread && <><dt>Spread</dt><dd>{brief(j.spread)}</dd></>}
                    {j.expectBy && <><dt>Check-in</dt><dd>expected within {brief(j.expectBy)} of each instant</dd></>}
                    {j.subscribers !== undefined && j.subscribers !== null && <><dt>Subscribers</dt><dd>{number(Array.isArray(j.subscribers) ? j.subscribers.length : j.subscribers)}</dd></>}
                    <dt>Attempts</dt><dd>at most {j.retry.maxAttempts}, pauses from {brief(j.retry.initial)} to {brief(j.retry.max)}</dd>
                    <dt>Created</dt><dd><At at={j.createdAt} zone={zone} /></dd>
                    <dt>Changed</dt><dd><At at={j.updatedAt} zone={zone} /></dd>
                  </dl>
                </Card>
                <Card title="How it went">
                  {j.outcomes ? (
                    <div class="tiles small">
                      <div class="tile good"><h3>Delivered</h3><p class="figure">{number(j.outcomes.delivered)}</p></div>
                      <div class={`tile ${j.outcomes.failed ? 'bad' : ''}`}><h3>Failed</h3><p class="figure">{number(j.outcomes.failed)}</p></div>
                      <div class={`tile ${j.outcomes.missed ? 'warn' : ''}`}><h3>Missed</h3><p class="figure">{number(j.outcomes.missed)}</p></div>
                    </div>
                  ) : <p class="muted">Outcomes are not known.</p>}
                  {j.lastOutcome && (
                    <p><Badge>{j.lastOutcome.outcome}</Badge> <At at={j.lastOutcome.instant} zone={zone} /> {j.lastOutcome.error && <span class="text">{j.lastOutcome.error}</span>}</p>
                  )}
                </Card>
                <Upcoming path={path} version={j.revision} zone={zone} pick={setPicked} picked={picked} />
                {picked && <Explain path={path} instant={picked} zone={zone} close={() => setPicked(undefined)} />}
                <Card title={`Pending occurrences: ${number(j.pending)}`} wide>
                  <Table label="Pending occurrences" head={['Instant', 'State', 'Due', 'Attempts', 'For', 'Last error', '']} empty="None is pending.">
                    {j.occurrences.map((o) => (
                      <tr key={o.id}>
                        <td><At at={o.timestamp} zone={zone} brief /></td><td><Badge>{o.state}</Badge></td><td><At at={o.dueAt} zone={zone} /></td>
                        <td class="n">{o.attempt}</td><td class="key">{o.subscriber ?? ''}{o.step !== undefined ? ` step ${o.step}` : ''}</td>
                        <td class="text">{o.lastError ?? ''}</td>
                        <td><button type="button" class="small" aria-label={`Explain ${o.timestamp}`} onClick={() => setPicked(o.timestamp)}>Explain</button></td>
                      </tr>
                    ))}
                  </Table>
                  <Pages of={pages} next={j.nextCursor} />
                </Card>
                <History path={path} zone={zone} pick={setPicked} />
                <Card title="Definition" wide><Code text={print(definition(j))} label="Definition" /></Card>
              </div>
            </>
          );
        })()}
      {load.data === undefined && load.loaded && <History path={path} zone={undefined} pick={setPicked} />}
      {triggering && (
        <Confirm title="Fire once more, now?" action="Fire now" close={() => setTriggering(false)} run={async () => {
          const t = (await call<spec.Triggered>('POST', `${path}/trigger`, { ofJobs: true })).data;
          say(`An occurrence is due now: ${t.id}.`);
          load.reload();
        }}>
          <p>One more occurrence of <b class="key">{of}</b> becomes due at once, beside those of its schedule.</p>
        </Confirm>
      )}
      {cancelling !== undefined && (
        <Confirm title="Cancel this job?" action="Cancel the job" danger close={() => setCancelling(undefined)} run={async () => {
          try {
            const c = (await call<spec.Cancelled>('DELETE', path, { ofJobs: true, headers: { 'If-Match': cancelling } })).data;
            setAnswer({ tone: 'good', text: `The job is cancelled: ${number(c.cancelled)} occurrences will never fire, and ${number(c.inFlight)} were in flight and are not retried.` });
          } catch (err) {
            if (!(err instanceof Problem) || err.status !== 412) throw err;
            setAnswer({ tone: 'warn', text: 'Somebody has changed this job since you looked at it, so it was not cancelled. It is shown as it is now.' });
          }
          load.reload();
        }}>
          <p><b class="key">{of}</b> is deleted with its pending occurrences. Its dead letters and its history stay. This can’t be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function Upcoming({ path, version, zone, pick, picked }: {
  path: string; version: string; zone: string | undefined; pick: (at: string) => void; picked: string | undefined;
}) {
  const load = usePoll((s) => get<spec.Preview>(`${path}/preview`, { ofJobs: true, query: { count: 12 }, signal: s }), 30, [path, version]);
  return (
    <Card title="Next instants" wide>
      <Loaded of={load}>{(preview) => (
        <>
          <TimeLine preview={preview} jobsZone={zone} pick={pick} picked={picked} now={now.value} />
          <p class="muted">Click an instant to have it explained. {preview.crontab && <>With its values for H, the crontab is <code>{preview.crontab}</code>. </>}
            {zone && zoneFor(zone) !== zone && <>The job’s zone is {zone}.</>}</p>
          <Effects of={preview} />
        </>
      )}</Loaded>
    </Card>
  );
}

// Effects lists what changes of the clocks, and past instants, do.
export function Effects({ of }: { of: spec.Preview }) {
  const notes = [...of.items.filter((i) => i.note).map((i) => `${wall(i.local)}: ${i.note}`), ...of.leftOut.map((l) => `${wall(l.local)}: ${l.note}`)];
  if (notes.length === 0) return null;
  return <ul class="effects">{notes.slice(0, 8).map((n) => <li key={n}>{n}</li>)}</ul>;
}

function Explain({ path, instant, zone, close }: { path: string; instant: string; zone: string | undefined; close: () => void }) {
  const load = usePoll((s) => get<spec.Explanation>(`${path}/explain`, { ofJobs: true, query: { at: instant }, signal: s }), 10, [path, instant]);
  return (
    <Card title={`Explained: ${show(instant, zoneFor(zone))}`} wide actions={<button type="button" class="small" onClick={close}>Close</button>}>
      <Loaded of={load}>{(e) => (
        <div class="explained">
            <p><Badge tone={e.code === 'delivered' ? 'good' : ['dead', 'missed', 'destination_down'].includes(e.code) ? 'bad' : 'info'}>{e.code.replaceAll('_', ' ')}</Badge> {e.summary}</p>
            {e.facts && e.facts.length > 1 && <ul>{e.facts.map((f, i) => (
              <li key={i}>{f.text} {f.since && <small class="muted">since <At at={f.since} zone={zone} /></small>}</li>
            ))}</ul>}
            {e.nearest && e.nearest.length > 0 && <p class="muted">The nearest instants: {e.nearest.map((n) => show(n, zoneFor(zone))).join(', ')}</p>}
          </div>
        )}</Loaded>
    </Card>
  );
}

function History({ path, zone, pick }: { path: string; zone: string | undefined; pick: (at: string) => void }) {
  const pages = usePages([path]);
  const [outcome, setOutcome] = useState('');
  const load = usePoll((s) => optional<spec.HistoryPage>(`${path}/history`, {
    ofJobs: true, signal: s, query: { limit: 25, cursor: pages.cursor, outcome },
  }), pages.page === 1 ? 5 : 0, [path, pages.cursor, outcome]);
  return (
    <Card title="History" wide actions={
      <label class="inline">Show <select value={outcome} onChange={(e) => setOutcome(e.currentTarget.value)}>
        <option value="">everything</option><option value="failed">failures only</option>
      </select></label>
    }>
      <Loaded of={load}>{(page) => (
        <>
          {page?.incomplete && <p class="note warn">Some entries from {page.missingFrom ? show(page.missingFrom, zoneFor(zone)) : '…'} to {page.missingUntil ? show(page.missingUntil, zoneFor(zone)) : '…'} may be missing.</p>}
          <Table label="History" head={['At', 'What', 'Instant', 'Attempt', 'Took', 'Destination', 'Details']} empty={page?.nextCursor ? 'Nothing on this page. Older entries follow.' : 'Nothing is recorded.'}>
            {(page?.items ?? []).map((e, i) => (
              <tr key={i}>
                <td><At at={e.at} zone={zone} brief /></td>
                <td><Badge>{e.outcome ?? e.change ?? ''}</Badge></td>
                <td>{e.timestamp ? <button type="button" class="link" onClick={() => pick(e.timestamp!)}>{show(e.timestamp, zoneFor(zone), false)}</button> : ''}</td>
                <td class="n">{e.attempt ?? ''}</td>
                <td class="n">{e.duration ? span(secondsOf(e.duration) ?? 0) : ''}</td>
                <td class="key">{e.destination ?? ''}</td>
                <td class="text">{[e.status && `status ${e.status}`, e.error, e.by && `by ${e.by}`, e.fields?.join(', ')].filter(Boolean).join('; ')}</td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page?.nextCursor} />
        </>
      )}</Loaded>
    </Card>
  );
}
