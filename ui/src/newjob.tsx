// A new job: a form for each kind, with what it would do beside it.

import { useState } from 'preact/hooks';
import { api, at, call, session, tenant } from './client';
import { Preview } from './edit';
import { blankCallback, CallbackFields, callbackOf, put, type CallbackForm, type Object } from './callback';
import { numeric, parse, print, type Json } from './json';
import { Area, Card, Check, Code, Copy, Failure, jobLink, say, Select, Text, useAct } from './parts';
import type * as spec from './spec';
import { viewerZone } from './time';

type Kind = 'crontab' | 'schedules' | 'delay' | 'steps';

interface Step { type: string; period: string; unit: string; weekdays: string; date: string; metadata: string }

interface Form {
  key: string; kind: Kind; crontab: string; timezone: string; startAt: string; endAt: string; catchUp: string; spread: string;
  schedules: string; past: string; delay: string; steps: Step[]; subscribers: string;
  callback: CallbackForm; payload: string;
  priority: string; deadline: string; expectBy: string; maxAttempts: string; initial: string; max: string; maxInFlight: string; rate: string;
}

const newStep = (type: string): Step => ({ type, period: '1', unit: 'days', weekdays: 'monday', date: '', metadata: '' });

const blank = (): Form => ({
  key: session.value?.keyPrefix ?? '', kind: 'crontab', crontab: '0 9 * * 1-5', timezone: viewerZone, startAt: '', endAt: '', catchUp: '', spread: '',
  schedules: new Date(Math.ceil((Date.now() + 3600e3) / 60e3) * 60e3).toISOString(), past: '', delay: '15m',
  steps: [newStep('job'), newStep('wait_certain_period'), newStep('job')], subscribers: '',
  callback: blankCallback, payload: '{\n  "hello": "world"\n}',
  priority: '', deadline: '', expectBy: '', maxAttempts: '', initial: '', max: '', maxInFlight: '', rate: '',
});

// json reads a text as JSON, or else as a plain string.
const json = (text: string): Json => {
  try { return parse(text); } catch { return text; }
};

function stepOf(s: Step): Object {
  switch (s.type) {
    case 'wait_certain_period': return { type: s.type, delay_period: numeric(s.period), delay_unit: s.unit };
    case 'wait_weekday': return { type: s.type, weekdays: s.weekdays.split(/[ ,]+/).filter(Boolean) };
    case 'wait_specific_date': return { type: s.type, date: s.date };
    default: return s.metadata.trim() ? { type: 'job', metadata: json(s.metadata) } : { type: 'job' };
  }
}

function subscribersOf(text: string): Json | undefined {
  if (!text.trim()) return undefined;
  const value = json(text);
  return typeof value === 'string' ? text.split(/[\n,]+/).map((s) => s.trim()).filter(Boolean) : value;
}

function scheduleOf(f: Form): Object {
  const job: Object = {};
  put(job, { key: f.key });
  switch (f.kind) {
    case 'crontab': put(job, { crontab: f.crontab, timezone: f.timezone, startAt: f.startAt, endAt: f.endAt, catchUp: f.catchUp }); break;
    case 'schedules': job.schedules = f.schedules.split(/[\s,]+/).filter(Boolean); put(job, { past: f.past }); break;
    case 'delay': put(job, { delay: f.delay }); break;
    case 'steps': {
      job.steps = f.steps.map(stepOf);
      const subscribers = subscribersOf(f.subscribers);
      if (subscribers !== undefined) job.subscribers = subscribers;
      put(job, { timezone: f.timezone, startAt: f.startAt });
    }
  }
  put(job, { spread: f.spread, deadline: f.deadline, expectBy: f.expectBy });
  return job;
}

function jobOf(f: Form): Object {
  const job = scheduleOf(f), callback = callbackOf(f.callback);
  if (f.payload.trim()) callback.data.payload = json(f.payload);
  put(job, { priority: f.priority });
  const retry: Object = {};
  if (f.maxAttempts) retry.maxAttempts = numeric(f.maxAttempts);
  put(retry, { initial: f.initial, max: f.max });
  if (Object.keys(retry).length > 0) job.retry = retry;
  const destination: Object = {};
  if (f.maxInFlight) destination.maxInFlight = numeric(f.maxInFlight);
  if (f.rate) destination.ratePerSecond = numeric(f.rate);
  if (Object.keys(destination).length > 0) job.destination = destination;
  job.callback = callback;
  return job;
}

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

function curlOf(job: Object): string {
  const { key, ...rest } = job;
  const lines = [`curl -X PUT ${quoted(new URL(`jobs/${at(String(key ?? 'KEY'))}`, api).href)}`, "-H 'Content-Type: application/json'"];
  if (session.value?.authentication === 'keys') lines.push('-H "Authorization: Bearer $CARILLON_KEY"');
  if (tenant.value && tenant.value !== 'default') lines.push(`-H 'Carillon-Tenant: ${tenant.value}'`);
  lines.push(`-d ${quoted(print(rest))}`);
  return lines.join(' \\\n  ');
}

let zones: string[] | undefined;
const allZones = () => (zones ??= ['UTC', ...(Intl.supportedValuesOf?.('timeZone') ?? [])]);

const kinds: [Kind, string][] = [['crontab', 'Again and again'], ['schedules', 'At instants'], ['delay', 'After a delay'], ['steps', 'A sequence']];

export function NewJob() {
  const [f, setForm] = useState(blank), [replace, setReplace] = useState(false), [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  const set = <K extends keyof Form>(name: K) => (value: Form[K]) => setForm((old) => ({ ...old, [name]: value }));
  const setCallback = (change: Partial<CallbackForm>) => setForm((old) => ({ ...old, callback: { ...old.callback, ...change } }));
  const job = jobOf(f);
  const submit = () => act(async () => {
    setError(undefined);
    try {
      const { key, ...rest } = job;
      const got = await call<spec.Accepted>('PUT', `jobs/${at(String(key ?? ''))}`, {
        ofJobs: true, body: rest, headers: replace ? {} : { 'If-None-Match': '*' },
      });
      say(got.status === 201 ? 'The job is created.' : 'The job is replaced.');
      location.hash = jobLink(String(key));
    } catch (err) {
      setError(err);
    }
  });
  const setStep = (i: number, change: Partial<Step>) => set('steps')(f.steps.map((s, n) => (n === i ? { ...s, ...change } : s)));
  return (
    <>
      <p class="crumbs"><a href="#/jobs">Jobs</a></p>
      <h1>New job</h1>
      <datalist id="zones">{allZones().map((z) => <option key={z} value={z} />)}</datalist>
      <div class="columns">
        <form class="stack" onSubmit={(e) => { e.preventDefault(); void submit(); }}>
          <Card title="When">
            <Text label="Key" value={f.key} set={set('key')} required placeholder="invoices/monthly"
              hint={session.value?.keyPrefix ? `It must begin with ${session.value.keyPrefix}` : 'You choose it. A second job of the same key replaces the first.'} />
            <fieldset class="tabs"><legend>It fires</legend>
              {kinds.map(([k, name]) => (
                <label key={k} class={f.kind === k ? 'on' : ''}><input type="radio" name="kind" value={k} checked={f.kind === k} onChange={() => set('kind')(k)} />{name}</label>
              ))}
            </fieldset>
            {f.kind === 'crontab' && <>
              <Text label="Crontab" value={f.crontab} set={set('crontab')} hint={<>Minute, hour, day, month, weekday; or seconds first; <code>@every 90s</code>, <code>@daily</code>; <code>H</code> for a value that follows from the key.</>} />
              <Text label="Time zone" value={f.timezone} set={set('timezone')} list="zones" />
              <div class="row"><Text label="Starts at" value={f.startAt} set={set('startAt')} placeholder="now" /><Text label="Ends at" value={f.endAt} set={set('endAt')} placeholder="never" /></div>
              <Select label="After an outage or a pause" value={f.catchUp} set={set('catchUp')} options={[['', 'the latest missed instant fires'], ['all', 'all missed instants fire'], ['none', 'none fires']]} />
            </>}
            {f.kind === 'schedules' && <>
              <Area label="Instants" value={f.schedules} set={set('schedules')} hint="RFC 3339, one on each line." />
              <Select label="Instants that have passed" value={f.past} set={set('past')} options={[['', 'fire at once if the job is new'], ['fire', 'fire at once'], ['skip', 'are skipped'], ['reject', 'make the job be refused']]} />
            </>}
            {f.kind === 'delay' && <Text label="Delay" value={f.delay} set={set('delay')} hint="Such as 90s, 15m, 36h or 7d." />}
            {f.kind === 'steps' && <>
              <ol class="steps">{f.steps.map((s, i) => (
                <li key={i}>
                  <div class="row">
                    <Select label={`Step ${i + 1}`} value={s.type} set={(type) => setStep(i, { type })} options={[['job', 'fire'], ['wait_certain_period', 'wait for a time'], ['wait_weekday', 'wait for a weekday'], ['wait_specific_date', 'wait for a date']]} />
                    {s.type === 'job' && <Text label="Payload of the step" value={s.metadata} set={(metadata) => setStep(i, { metadata })} placeholder="the job’s" />}
                    {s.type === 'wait_certain_period' && <><Text label="How many" value={s.period} set={(period) => setStep(i, { period })} type="number" />
                      <Select label="Unit" value={s.unit} set={(unit) => setStep(i, { unit })} options={['seconds', 'minutes', 'hours', 'days', 'weeks']} /></>}
                    {s.type === 'wait_weekday' && <Text label="Weekdays" value={s.weekdays} set={(weekdays) => setStep(i, { weekdays })} />}
                    {s.type === 'wait_specific_date' && <Text label="Date" value={s.date} set={(date) => setStep(i, { date })} placeholder="2026-12-24T09:00:00Z" />}
                    <button type="button" class="small" aria-label={`Remove step ${i + 1}`} onClick={() => set('steps')(f.steps.filter((_, n) => n !== i))}>Remove</button>
                  </div>
                </li>
              ))}</ol>
              <button type="button" class="small" onClick={() => set('steps')([...f.steps, newStep('job')])}>Add a step</button>
              <Area label="Subscribers" value={f.subscribers} set={set('subscribers')} rows={2} hint="A number, or ids with commas between them; none for one receiver." />
              <Text label="Starts at" value={f.startAt} set={set('startAt')} placeholder="now" />
              <Text label="Time zone" value={f.timezone} set={set('timezone')} list="zones" />
            </>}
          </Card>
          <Card title="What it calls">
            <Select label="Type" value={f.callback.type} set={(v) => setCallback({ type: v as CallbackForm['type'] })} options={[['http', 'Webhook'], ['rabbitmq', 'RabbitMQ'], ['kafka', 'Kafka']]} />
            <CallbackFields of={f.callback} set={setCallback} envelopes={[['', 'none'], 'cloudevents', 'cloudevents-binary']}>
              <Area label="Payload" value={f.payload} set={set('payload')} rows={5} hint="JSON; anything else is sent as a JSON string." />
            </CallbackFields>
          </Card>
          <Card title="How">
            <details><summary>Priority, deadline, check-ins, retries, limits</summary>
              <Select label="Priority" value={f.priority} set={set('priority')} options={[['', 'the tenant’s'], 'high', 'normal', 'low']} />
              <div class="row"><Text label="Deadline" value={f.deadline} set={set('deadline')} placeholder="none" hint="Later than that, it is dropped." /><Text label="Spread" value={f.spread} set={set('spread')} placeholder="none" hint="Instants are moved by up to this time, each job’s by its own." /></div>
              <Text label="A check-in is expected within" value={f.expectBy} set={set('expectBy')} placeholder="none" hint="After each instant, such as 15m. If none comes, an event tells the tenant." />
              <div class="row"><Text label="Attempts" value={f.maxAttempts} set={set('maxAttempts')} type="number" /><Text label="First pause" value={f.initial} set={set('initial')} /><Text label="Longest pause" value={f.max} set={set('max')} /></div>
              <div class="row"><Text label="Calls at once" value={f.maxInFlight} set={set('maxInFlight')} type="number" /><Text label="Calls per second" value={f.rate} set={set('rate')} type="number" /></div>
            </details>
            <Check label="Replace a job of this key, if there is one" value={replace} set={setReplace} />
            <Failure error={error} />
            <div class="row end"><button class="primary" disabled={busy || !f.key}>{replace ? 'Create or replace' : 'Create'}</button></div>
          </Card>
        </form>
        <div class="stack">
          <Preview job={scheduleOf(f)} />
          <Card title="The same as JSON" actions={<Copy text={print(job)} what="the JSON" />}><Code text={print(job)} label="JSON" /></Card>
          <Card title="The same by curl" actions={<Copy text={curlOf(job)} what="the command" />}><Code text={curlOf(job)} label="curl command" /></Card>
        </div>
      </div>
    </>
  );
}
