// Tenants: how they are served, and their limits.

import { useState } from 'preact/hooks';
import { at, call, everyTenant, get, may, optional, whole } from './client';
import { blankCallback, callbackForm, CallbackFields, callbackOf, type CallbackForm } from './callback';
import { numeric } from './json';
import { LimitFields, limitsForm, limitsOf } from './limits';
import { At, Badge, Check, Dialog, Failure, Loaded, Pages, say, Select, Table, Text, useAct, usePages, usePoll } from './parts';
import type * as spec from './spec';

export function Tenants() {
  const pages = usePages([]);
  const [open, setOpen] = useState<string>(), [name, setName] = useState('');
  const load = usePoll((s) => get<spec.TenantPage>('tenants', { signal: s, query: { limit: 100, cursor: pages.cursor } }), 15, [pages.cursor]);
  return (
    <>
      <h1>Tenants</h1>
      {may('operate') && whole() && everyTenant() && (
        <form class="row filter" onSubmit={(e) => { e.preventDefault(); if (name) setOpen(name); }}>
          <Text label="Another tenant" value={name} set={setName} placeholder="name" />
          <button disabled={!name}>Set how it is served</button>
        </form>
      )}
      <Loaded of={load}>{(page) => (
        <>
          <Table label="Tenants" head={['Tenant', 'State', 'Weight', 'Priority', 'At once', 'First seen', '']} empty="No tenant has submitted a job yet.">
            {page.items.map((t) => (
              <tr key={t.name}>
                <td class="key">{t.name}</td><td>{t.settings.paused ? <Badge>paused</Badge> : <Badge tone="good">served</Badge>}</td>
                <td class="n">{t.settings.weight ?? 1}</td><td><Badge>{t.effectivePriority}</Badge></td><td class="n">{t.settings.maxInFlight ?? 'no limit'}</td>
                <td><At at={t.firstSeen} brief /></td>
                <td><button type="button" class="small" aria-label={`Settings of ${t.name}`} onClick={() => setOpen(t.name)}>Settings</button></td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page.nextCursor} />
        </>
      )}</Loaded>
      {open && <Dialog title={`Tenant ${open}`} close={() => setOpen(undefined)}>
        <Settings of={open} done={() => { setOpen(undefined); load.reload(); }} />
        <Limits of={open} />
      </Dialog>}
    </>
  );
}

function Settings({ of, done }: { of: string; done: () => void }) {
  const load = usePoll((s) => optional<spec.TenantView>(`tenants/${at(of)}`, { signal: s }), 0, [of]);
  if (!load.loaded) return <p class="muted">Loading…</p>;
  if (load.error) return <Failure error={load.error} />;
  return <SettingsForm of={of} settings={load.data?.settings ?? {}} known={!!load.data} done={done} />;
}

function SettingsForm({ of, settings, known, done }: { of: string; settings: spec.TenantSettings; known: boolean; done: () => void }) {
  const [weight, setWeight] = useState(settings.weight?.toString() ?? ''), [priority, setPriority] = useState<string>(settings.priority ?? '');
  const [most, setMost] = useState(settings.maxInFlight?.toString() ?? ''), [paused, setPaused] = useState(settings.paused ?? false);
  const [events, setEvents] = useState(eventsForm(settings.events ?? undefined));
  const [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  const allowed = may('operate') && whole();
  const send = (change: () => Promise<unknown>, text: string) => act(async () => {
    setError(undefined);
    try {
      await change();
      say(text);
      done();
    } catch (err) { setError(err); }
  });
  return (
    <form onSubmit={(e) => {
      e.preventDefault();
      // What this page does not know of stays as it is.
      const { weight: _w, priority: _p, maxInFlight: _m, paused: _s, events: _e, ...rest } = settings;
      const body = {
        ...rest, ...(weight ? { weight: numeric(weight) } : {}), ...(priority ? { priority } : {}), ...(most ? { maxInFlight: numeric(most) } : {}),
        ...(paused ? { paused } : {}), ...eventsOf(events, settings.events ?? undefined),
      };
      void send(() => call('PUT', `tenants/${at(of)}`, { body }), `The settings of ${of} are stored.`);
    }}>
      <fieldset disabled={!allowed} class="plain"><legend>How it is served</legend>
        <Text label="Weight" type="text" value={weight} set={setWeight} placeholder="1" hint="Its share of the slots, beside other tenants of its priority." />
        <Select label="Priority" value={priority} set={setPriority} options={[['', 'by default'], 'high', 'normal', 'low']} hint="Of its jobs that name none." />
        <Text label="Callbacks at once" value={most} set={setMost} placeholder="no limit" hint="On each replica." />
        <Check label="Paused: nothing of it fires" value={paused} set={setPaused} />
      </fieldset>
      <fieldset disabled={!allowed} class="plain"><legend>Events</legend>
        <EventFields of={events} set={setEvents} />
      </fieldset>
      <Failure error={error} />
      {allowed && <div class="row end">
        {known && <button type="button" disabled={busy} onClick={() => send(() => call('DELETE', `tenants/${at(of)}`), `${of} has the default settings.`)}>Back to the defaults</button>}
        <button class="primary" disabled={busy}>Store</button>
      </div>}
    </form>
  );
}

const eventTypes = {
  'carillon.deadletter.created': 'a dead letter', 'carillon.occurrence.missed': 'a missed instant', 'carillon.destination.down': 'a destination is down',
  'carillon.destination.up': 'it is up again', 'carillon.job.finished': 'a job has finished', 'carillon.job.failing': 'a job’s first failure',
  'carillon.quota.near': 'a quota is nearly used up', 'carillon.expectation.missed': 'no check-in has come',
} satisfies Record<spec.EventType, string>;
const everyType = Object.keys(eventTypes) as spec.EventType[];

interface EventsForm { to: '' | CallbackForm['type']; callback: CallbackForm; types: spec.EventType[]; perMinute: string }

const eventsForm = (e: spec.EventSettings | undefined): EventsForm => (e
  ? { to: e.callback.type, callback: callbackForm(e.callback), types: e.types ?? everyType, perMinute: e.perMinute?.toString() ?? '' }
  : { to: '', callback: blankCallback, types: everyType, perMinute: '' });

function eventsOf(f: EventsForm, was: spec.EventSettings | undefined): { events?: object } {
  if (!f.to) return {};
  return {
    events: {
      callback: callbackOf({ ...f.callback, type: f.to }, was?.callback),
      ...(f.types.length < everyType.length ? { types: f.types } : {}), ...(f.perMinute.trim() ? { perMinute: numeric(f.perMinute) } : {}),
    },
  };
}

// EventFields are whom events about a tenant and its jobs are delivered to, and which.
function EventFields({ of: f, set }: { of: EventsForm; set: (f: EventsForm) => void }) {
  return (
    <>
      <Select label="Delivered" value={f.to} set={(to) => set({ ...f, to: to as EventsForm['to'] })}
        options={[['', 'to nobody'], ['http', 'by webhook'], ['rabbitmq', 'by RabbitMQ'], ['kafka', 'by Kafka']]} hint="News of its jobs: dead letters, missed check-ins, destinations that are down." />
      {f.to && <>
        <CallbackFields of={{ ...f.callback, type: f.to }} set={(change) => set({ ...f, callback: { ...f.callback, ...change } })}
          envelopes={[['', 'cloudevents'], 'cloudevents-binary']} />
        <fieldset class="plain"><legend>It is told that</legend>
          <div class="pairs">{everyType.map((t) => (
            <Check key={t} label={eventTypes[t]} value={f.types.includes(t)} set={(on) => set({ ...f, types: everyType.filter((x) => (x === t ? on : f.types.includes(x))) })} />
          ))}</div>
        </fieldset>
        <Text label="At most per minute" value={f.perMinute} set={(perMinute) => set({ ...f, perMinute })} placeholder="60" hint="On each replica. One more event counts those beyond." />
      </>}
    </>
  );
}

function Limits({ of }: { of: string }) {
  const load = usePoll((s) => optional<spec.LimitsView>(`tenants/${at(of)}/limits`, { signal: s }), 0, [of]);
  if (!load.data) return null;
  return <TenantLimits key={JSON.stringify(load.data.own)} of={of} view={load.data} done={load.reload} />;
}

function TenantLimits({ of, view, done }: { of: string; view: spec.LimitsView; done: () => void }) {
  const [own, setOwn] = useState(limitsForm(view.own));
  const [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  const allowed = may('administer') && everyTenant() && whole();
  const send = (change: () => Promise<unknown>, text: string) => act(async () => {
    setError(undefined);
    try { await change(); say(text); done(); } catch (err) { setError(err); }
  });
  return (
    <form onSubmit={(e) => {
      e.preventDefault();
      void send(() => call('PUT', `tenants/${at(of)}/limits`, { body: limitsOf(own) }), `The limits of ${of} are stored.`);
    }}>
      <fieldset disabled={!allowed} class="plain"><legend>Limits</legend>
        <LimitFields of={own} set={setOwn} effective={view.effective} />
        <Text label="History is kept for" value={own.history ?? ''} set={(history) => setOwn({ ...own, history })} placeholder={view.effective.history ?? 'as long as the service keeps it'} hint="Such as 30d, failures:7d for all but deliveries, or 0." />
      </fieldset>
      <Failure error={error} />
      {allowed && <div class="row end">
        <button type="button" disabled={busy} onClick={() => send(() => call('DELETE', `tenants/${at(of)}/limits`), `${of} has the default limits.`)}>Default limits</button>
        <button class="primary" disabled={busy}>Store the limits</button>
      </div>}
    </form>
  );
}
