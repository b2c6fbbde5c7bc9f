// Tenants: how they are served, and their limits.

import { useState } from 'preact/hooks';
import { at, call, everyTenant, get, may, optional, whole } from './client';
import { numeric } from './json';
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
      const { weight: _w, priority: _p, maxInFlight: _m, paused: _s, ...rest } = settings;
      const body = { ...rest, ...(weight ? { weight: numeric(weight) } : {}), ...(priority ? { priority } : {}), ...(most ? { maxInFlight: numeric(most) } : {}), ...(paused ? { paused } : {}) };
      void send(() => call('PUT', `tenants/${at(of)}`, { body }), `The settings of ${of} are stored.`);
    }}>
      <fieldset disabled={!allowed} class="plain"><legend>How it is served</legend>
        <Text label="Weight" type="text" value={weight} set={setWeight} placeholder="1" hint="Its share of the slots, beside other tenants of its priority." />
        <Select label="Priority" value={priority} set={setPriority} options={[['', 'by default'], 'high', 'normal', 'low']} hint="Of its jobs that name none." />
        <Text label="Callbacks at once" value={most} set={setMost} placeholder="no limit" hint="On each replica." />
        <Check label="Paused: nothing of it fires" value={paused} set={setPaused} />
      </fieldset>
      <Failure error={error} />
      {allowed && <div class="row end">
        {known && <button type="button" disabled={busy} onClick={() => send(() => call('DELETE', `tenants/${at(of)}`), `${of} has the default settings.`)}>Back to the defaults</button>}
        <button class="primary" disabled={busy}>Store</button>
      </div>}
    </form>
  );
}

const limitNames: [keyof spec.Limits, string][] = [
  ['requestsPerSecond', 'Requests per second'], ['requestBurst', 'Requests at once'], ['batchBytesPerSecond', 'Bytes of batches per second'],
  ['maxJobs', 'Jobs'], ['maxPending', 'Pending occurrences'], ['maxPayload', 'Bytes of a payload'],
];

function Limits({ of }: { of: string }) {
  const load = usePoll((s) => optional<spec.LimitsView>(`tenants/${at(of)}/limits`, { signal: s }), 0, [of]);
  if (!load.data) return null;
  return <LimitsForm key={JSON.stringify(load.data.own)} of={of} view={load.data} done={load.reload} />;
}

function LimitsForm({ of, view, done }: { of: string; view: spec.LimitsView; done: () => void }) {
  const [own, setOwn] = useState<Record<string, string>>(Object.fromEntries(Object.entries(view.own).map(([n, v]) => [n, String(v)])));
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
      const body = Object.fromEntries(Object.entries(own).filter(([, v]) => v !== '').map(([n, v]) => [n, numeric(v)]));
      void send(() => call('PUT', `tenants/${at(of)}/limits`, { body }), `The limits of ${of} are stored.`);
    }}>
      <fieldset disabled={!allowed} class="plain"><legend>Limits</legend>
        <div class="pairs">{limitNames.map(([name, text]) => (
          <Text key={name} label={text} value={own[name] ?? ''} set={(v) => setOwn({ ...own, [name]: v })} placeholder={view.effective[name] ? String(view.effective[name]) : 'no limit'} />
        ))}</div>
      </fieldset>
      <Failure error={error} />
      {allowed && <div class="row end">
        <button type="button" disabled={busy} onClick={() => send(() => call('DELETE', `tenants/${at(of)}/limits`), `${of} has the default limits.`)}>Default limits</button>
        <button class="primary" disabled={busy}>Store the limits</button>
      </div>}
    </form>
  );
}
