// Is it on time?

import { useEffect, useRef, useState } from 'preact/hooks';
import { get, may, optional, session, tenant, whole } from './client';
import { Chart } from './chart';
import { At, Badge, Card, Failure, jobLink, Loaded, Table, usePoll } from './parts';
import type * as spec from './spec';
import { brief, clock, now, number, secondsOf, show, span, zoneFor } from './time';

type Status = spec.ServiceStatus;
const duration = (v: unknown): string => {
  const s = secondsOf(v);
  return s === undefined ? '–' : span(s);
};

function Tile({ name, children, note, tone }: { name: string; children: preact.ComponentChildren; note?: preact.ComponentChildren; tone?: string }) {
  return (
    <div class={`tile ${tone ?? ''}`}>
      <h2>{name}</h2>
      <p class="figure">{children}</p>
      <p class="muted">{note ?? '\u00a0'}</p>
    </div>
  );
}

const most = (n: number, atLeast?: boolean) => `${number(n)}${atLeast ? '+' : ''}`;

export function Overview() {
  if (!whole()) {
    return (
      <>
        <h1>Overview</h1>
        <p class="note">Your key is for jobs whose keys have a prefix. How the service as a whole does is for keys without one.</p>
        <Failures />
      </>
    );
  }
  return <Whole />;
}

function Whole() {
  const load = usePoll(async (s) => {
    const [backlog, status, ready] = await Promise.all([
      get<spec.Backlog>('backlog', { signal: s }),
      optional<Status>('status', { signal: s }),
      optional<spec.Readiness>('../readyz', { signal: s }).catch(() => undefined),
    ]);
    return { backlog, status, ready };
  }, 5, []);
  return (
    <>
      <h1>Overview</h1>
      {load.error !== undefined && load.data === undefined ? <Failure error={load.error} /> : null}
      <Loaded of={load}>{({ backlog, status, ready }) => {
        const lateness = status?.lateness, p99 = secondsOf(lateness?.p99);
        // What waits for nothing but its tenant to be resumed is not late.
        const served = backlog.tenants.filter((t) => !t.paused && t.oldestDue);
        const overdue = Math.max(0, ...served.map((t) => (Date.parse(backlog.at) - Date.parse(t.oldestDue!)) / 1000));
        const paused = backlog.tenants.filter((t) => t.paused).reduce((n, t) => n + t.due, 0);
        const late = (p99 !== undefined && p99 > 1) || overdue > 5;
        const fired = status?.firedPerSecond ?? backlog.ratePerSecond;
        const warnings = [...new Set([...(ready?.warnings ?? []), ...(status?.warnings ?? [])])];
        const states = new Map(status?.destinations?.map((d) => [d.destination, d]));
        return (
          <>
            {warnings.map((w) => <p key={w} class="note warn">{w}</p>)}
            <div class="tiles">
              <Tile name="Is it on time?" tone={late ? 'bad' : 'good'}
                note={overdue > 0 ? `the oldest due one waits for ${span(overdue)}` : 'nothing that is due waits'}>{late ? 'Late' : 'On time'}</Tile>
              <Tile name={`Lateness${lateness ? `, last ${brief(lateness.window)}` : ''}`}
                note={lateness?.max ? `at most ${duration(lateness.max)}` : 'nothing has fired'}>
                {lateness === undefined || p99 === undefined ? '–' : <>{duration(lateness.p50)} <small>p50</small> {duration(lateness.p99)} <small>p99</small></>}
              </Tile>
              <Tile name="Fired per second" note={`${most(backlog.pending, backlog.atLeast)} are pending`}>{fired === undefined ? '–' : number(fired)}</Tile>
              <Tile name="Due now" tone={backlog.due > 0 && overdue > 5 ? 'warn' : ''}
                note={backlog.drainSeconds ? `fired in about ${span(backlog.drainSeconds)}` : paused > 0 ? `${number(paused)} of paused tenants` : backlog.due === 0 ? 'no backlog' : ''}>
                {most(backlog.due, backlog.atLeast)}
              </Tile>
              <Tile name="Dead letters" tone={backlog.deadLetters ? 'warn' : ''} note={<a href="#/dead-letters">Look at them</a>}>
                {backlog.deadLetters === undefined ? '–' : number(backlog.deadLetters)}
              </Tile>
              <Tile name="Replicas" note={status?.version ? `version ${status.version}` : undefined}>{status?.replicas?.length ?? backlog.replicas ?? '–'}</Tile>
            </div>
            <div class="columns">
              {lateness?.hours && <Day hours={lateness.hours} />}
              <Live backlog={backlog} fired={fired} />
              <Forecast />
              <Card title="Backlog by priority">
                <Table label="Backlog by priority" head={['Priority', 'Due', 'Pending']}>
                  {backlog.priorities.map((p) => (
                    <tr key={p.priority}><td><Badge>{p.priority}</Badge></td><td class="n">{most(p.due, p.atLeast)}</td><td class="n">{most(p.pending, p.atLeast)}</td></tr>
                  ))}
                </Table>
              </Card>
              <Card title="Backlog by tenant">
                <Table label="Backlog by tenant" head={['Tenant', 'Weight', 'Due', 'Pending', 'Oldest due']} empty="No tenant has anything pending.">
                  {backlog.tenants.slice(0, 20).map((t) => (
                    <tr key={t.name}>
                      <td>{t.name} {t.paused && <Badge>paused</Badge>}</td><td class="n">{t.weight}</td>
                      <td class="n">{most(t.due, t.atLeast)}</td><td class="n">{most(t.pending, t.atLeast)}</td><td><At at={t.oldestDue} brief /></td>
                    </tr>
                  ))}
                </Table>
              </Card>
              <Objectives of={status?.objectives ?? []} />
              {status?.replicas && <Replicas of={status.replicas} />}
              <Card title="Destinations" wide>
                <Table label="Destinations" head={['Destination', 'State', 'Due', 'Pending', 'Under way', 'Time per call']} empty="No destination is known yet.">
                  {backlog.destinations.slice(0, 20).map((d) => (
                    <tr key={d.name}>
                      <td class="key">{d.name}</td>
                      <td>{d.openSince || states.get(d.name)?.state === 'down' ? <><Badge>down</Badge> {d.openSince && <At at={d.openSince} brief />}</>
                        : states.get(d.name)?.state === 'partly down' ? <Badge tone="warn">partly down</Badge>
                        : d.failures ? <Badge tone="warn">{`${d.failures} failures in a row`}</Badge> : <Badge>up</Badge>}</td>
                      <td class="n">{d.estimated && '≈ '}{most(d.due, d.atLeast)}</td><td class="n">{d.estimated && '≈ '}{most(d.pending, d.atLeast)}</td>
                      <td class="n">{d.inFlight ?? '–'}</td><td class="n">{d.duration ? duration(d.duration) : '–'}</td>
                    </tr>
                  ))}
                </Table>
              </Card>
            </div>
          </>
        );
      }}</Loaded>
      <Failures />
    </>
  );
}

// Day draws how late the last 24 hours were, hour by hour, by orders of magnitude.
function Day({ hours }: { hours: NonNullable<NonNullable<Status['lateness']>['hours']> }) {
  const least = 0.001, zone = zoneFor();
  const values = (of: 'p50' | 'p99' | 'max') => hours.map((h) => {
    const seconds = secondsOf(h[of]);
    return seconds === undefined ? null : Math.max(seconds, 1.1 * least);
  });
  const fired = hours.reduce((n, h) => n + h.count, 0);
  const worst = hours.reduce((a, b) => ((secondsOf(b.p99) ?? 0) > (secondsOf(a.p99) ?? 0) ? b : a), hours[0]!);
  return (
    <Card title="Lateness of the last 24 hours">
      {fired === 0 ? <p class="empty">Nothing has fired.</p> : (
        <Chart times={hours.map((h) => Date.parse(h.from) / 1000)} zone={zone} least={least} text={(v) => (v < 1 ? `${v * 1000} ms` : `${v} s`)}
          summary={`${number(fired)} have fired; worst in the hour from ${clock(worst.from, zone)}: p99 ${duration(worst.p99)}, at most ${duration(worst.max)}`}
          lines={[{ label: 'at most', colour: '--warn', values: values('max'), bars: true }, { label: 'p99', colour: '--accent', values: values('p99'), bars: true },
            { label: 'p50', colour: '--good', values: values('p50'), bars: true }]} />
      )}
    </Card>
  );
}

// Live draws what this page has seen since it was opened: the service is asked for nothing more.
function Live({ backlog, fired }: { backlog: spec.Backlog; fired: number | undefined }) {
  const seen = useRef<{ at: number; due: number; fired: number | null }[]>([]);
  const at = Date.parse(backlog.at) / 1000;
  if (seen.current.at(-1)?.at !== at) seen.current = [...seen.current.slice(-719), { at, due: backlog.due, fired: fired ?? null }];
  const all = seen.current;
  return (
    <Card title="Since this page was opened">
      {all.length < 2 ? <p class="empty">The first readings are coming in.</p> : <Chart times={all.map((s) => s.at)} zone={zoneFor()}
        summary={`${all.length} readings; now ${number(backlog.due)} due`}
        lines={[{ label: 'due', colour: '--warn', values: all.map((s) => s.due) }, { label: 'fired per second', colour: '--accent', values: all.map((s) => s.fired) }]} />}
    </Card>
  );
}

// A forecast is made of the definitions of all jobs, which takes the store some time. The page asks for the next one after
// a hundred times as long, from five minutes to half an hour, so that looking at it takes at most a hundredth.
const forecast: { of?: string | undefined; until: number; began?: number | undefined; kept?: spec.Forecast | undefined } = { until: 0 };

async function readForecast(s: AbortSignal): Promise<spec.Forecast | undefined> {
  const who = session.value?.id, began = performance.now();
  if (forecast.of === who && began < forecast.until) return forecast.kept;
  forecast.began ??= began; // a first try may have failed because it took too long
  const kept = await optional<spec.Forecast>('forecast', { signal: s }), now = performance.now();
  Object.assign(forecast, { of: who, kept, until: now + Math.min(1800e3, Math.max(300e3, 100 * (now - forecast.began))), began: undefined });
  return kept;
}

function Forecast() {
  const load = usePoll(readForecast, 60, []);
  if (load.data === undefined) return null;
  const { steps, total, incomplete } = load.data;
  const behind = steps.filter((s) => (s.left ?? 0) > 0);
  return (
    <Card title="Forecast of the next 24 hours">
      <Chart times={steps.map((s) => Date.parse(s.from) / 1000)} zone={zoneFor()}
        summary={`${number(total)} are to fire${incomplete ? ' at least' : ''}${behind.length > 0 ? `; in ${behind.length} of ${steps.length} steps more than can be fired` : ''}`}
        lines={[{ label: 'to fire', colour: '--accent', values: steps.map((s) => s.count), bars: true },
          ...(behind.length > 0 ? [{ label: 'left over', colour: '--bad', values: steps.map((s) => s.left ?? 0) }] : [])]} />
    </Card>
  );
}

function Objectives({ of }: { of: Status['objectives'] }) {
  if (of.length === 0) return null;
  return (
    <Card title="Objectives">
      <Table label="Objectives" head={['Tenant', 'Within', 'Target', 'Met', 'Late, by window', 'Burn rate']}>
        {of.map((o, i) => (
          <tr key={i}>
            <td>{o.tenant ?? 'all'}</td><td>{brief(o.within)}</td><td class="n">{percent(o.target)}</td>
            <td class="n">{o.met === undefined ? '–' : percent(o.met)} {o.met !== undefined && o.met < o.target && <Badge tone="bad">missed</Badge>}</td>
            <td>{o.windows.map((w) => <div key={w.window}>{brief(w.window)}: {number(w.late)} of {number(w.fired)}</div>)}</td>
            <td class="n">{number(o.burnRate)}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

const percent = (v: number) => `${(v * 100).toFixed(3).replace(/\.?0+$/, '')} %`;

function Replicas({ of }: { of: NonNullable<Status['replicas']> }) {
  return (
    <Card title="Replicas">
      <Table label="Replicas" head={['Replica', 'Version', 'Seen', 'Ready']}>
        {of.slice(0, 50).map((r) => (
          <tr key={r.id}>
            <td class="key">{r.id}</td><td>{r.version ?? '–'}</td><td><At at={r.seen} brief /></td>
            <td>{r.ready === undefined ? '–' : r.ready ? <Badge tone="good">ready</Badge> : <Badge tone="bad">not ready</Badge>}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

// Failures lists the latest failed attempts of the tenant.
function Failures() {
  const load = usePoll((s) => optional<spec.HistoryPage>('history', { ofJobs: true, query: { outcome: 'failed', limit: 10 }, signal: s }), 15, [tenant.value]);
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(true), []);
  if (!open) return null;
  return (
    <Card title={`Recent failures of the tenant ${tenant.value}`} wide>
      <Loaded of={load}>{(page) => (
        <Table label="Recent failures" head={['At', 'Job', 'Instant', 'Attempt', 'Destination', 'Reason', 'What follows']} empty="No attempt has failed lately.">
          {(page?.items ?? []).map((e, i) => (
            <tr key={i}>
              <td><At at={e.at} /></td>
              <td class="key"><a href={jobLink(e.key)}>{e.key}</a></td>
              <td>{e.timestamp ? show(e.timestamp, zoneFor(), false) : '–'}</td>
              <td class="n">{e.attempt ?? '–'}</td>
              <td class="key">{e.destination ?? '–'}</td>
              <td class="text">{e.status ? `status ${e.status}` : e.error ?? '–'}</td>
              <td>{e.nextAttempt ? <>another attempt {Date.parse(e.nextAttempt) > now.value ? <At at={e.nextAttempt} brief /> : 'was made'}</> : <Badge>{e.outcome ?? ''}</Badge>}</td>
            </tr>
          ))}
        </Table>
      )}</Loaded>
      {may('read') && <p><a href="#/dead-letters">Dead letters</a></p>}
    </Card>
  );
}
