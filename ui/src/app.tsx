// The page: who is signed in, where they are, and what they see there.

import { signal } from '@preact/signals';
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';

import { call, everyTenant, may, optional, Problem, session, signIn, signOut, tenant, trouble, whole } from './client';
import type * as spec from './spec';
import { DeadLetters } from './deadletters';
import { EditJob } from './edit';
import { JobScreen } from './job';
import { Jobs } from './jobs';
import { Keys } from './keys';
import { NewJob } from './newjob';
import { Overview } from './overview';
import { Failure, Messages, Select, Text, useAct } from './parts';
import { Secrets } from './secrets';
import { Tenants } from './tenants';
import { themeChoice, type Choice as Theme } from './theme';
import { viewerZone, zoneChoice, type Choice as Zone } from './time';

// route is the path after the page's own address, in parts.
const route = signal<string[]>([]);
const read = () => {
  route.value = location.hash.replace(/^#\/?/, '').split('?')[0]!.split('/').map((p) => {
    try { return decodeURIComponent(p); } catch { return p; }
  });
};
addEventListener('hashchange', () => { read(); document.getElementById('main')?.focus(); scrollTo(0, 0); });
read();

function SignIn() {
  const [key, setKey] = useState(''), [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <main id="main" class="signin" tabIndex={-1}>
      <form class="card" onSubmit={(e) => {
        e.preventDefault();
        setError(undefined);
        void act(async () => {
          try { await signIn(key); } catch (err) { setError(err); }
        });
      }}>
        <h1><img src="icon.svg" alt="" width="36" height="36" /> Carillon</h1>
        <p class="muted">Sign in with an API key. The browser keeps a session, not the key; it ends when you sign out, or after 12 hours.</p>
        <Text label="Key" type="password" value={key} set={setKey} required placeholder="carillon_…" />
        <Failure error={error} />
        <button class="primary" disabled={busy || !key.trim()}>Sign in</button>
      </form>
    </main>
  );
}

// Tenant chooses the tenant whose jobs are shown.
function TenantChoice() {
  const [names, setNames] = useState<string[]>([]);
  const [more, setMore] = useState(false);
  useEffect(() => {
    const s = session.value!;
    const begin = (all: string[], rest: boolean) => {
      setNames(all);
      setMore(rest);
      const kept = localStorage.getItem('tenant');
      tenant.value = kept && (all.includes(kept) || everyTenant()) ? kept : all.includes('default') ? 'default' : all[0] ?? 'default';
    };
    if (!s.tenants.includes('*')) return begin(s.tenants, false);
    begin(['default'], false);
    void optional<spec.TenantPage>('tenants', { query: { limit: 200 } }).then((page) => {
      const all = new Set(['default', ...(page?.items ?? []).map((t) => t.name)]);
      begin([...all], !!page?.nextCursor);
    }).catch(() => undefined);
  }, [session.value]);
  const set = (name: string) => {
    if (!name) return;
    tenant.value = name;
    localStorage.setItem('tenant', name);
  };
  if (more) return <Text label="Tenant" value={tenant.value} set={set} />;
  const all = names.includes(tenant.value) || !tenant.value ? names : [...names, tenant.value];
  return <Select label="Tenant" value={tenant.value} set={set} options={all} />;
}

interface Place { path: string; name: string; shown: () => boolean }

const places: Place[] = [
  { path: '', name: 'Overview', shown: () => true },
  { path: 'jobs', name: 'Jobs', shown: () => true },
  { path: 'dead-letters', name: 'Dead letters', shown: () => true },
  { path: 'tenants', name: 'Tenants', shown: () => true },
  { path: 'keys', name: 'Keys', shown: () => may('administer') },
  { path: 'secrets', name: 'Secrets', shown: whole },
];

function Screen() {
  const [first = '', second, third] = route.value;
  switch (first) {
    case '': return <Overview />;
    case 'jobs': return second === undefined || second === '' ? <Jobs />
      : third === 'edit' ? <EditJob key={second} of={second} /> : <JobScreen key={second} of={second} />;
    case 'new': return <NewJob />;
    case 'dead-letters': return <DeadLetters />;
    case 'tenants': return <Tenants />;
    case 'keys': return <Keys />;
    case 'secrets': return <Secrets />;
    default: return <><h1>There is no such screen.</h1><p><a href="#/">To the overview</a></p></>;
  }
}

function Page() {
  const { busy, act } = useAct();
  if (session.value === undefined) {
    return <main id="main" class="signin" tabIndex={-1}><h1>Carillon</h1><p class="muted">{trouble.value || 'Loading…'}</p></main>;
  }
  if (session.value === null) return <><SignIn /><Messages /></>;
  const s = session.value, here = route.value[0] === 'new' ? 'jobs' : route.value[0] ?? '';
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>To the content</a>
      <header class="top">
        <a class="brand" href="#/"><img src="icon.svg" alt="" width="28" height="28" /><span>Carillon</span></a>
        <nav aria-label="Screens">
          {places.filter((p) => p.shown()).map((p) => (
            <a key={p.path} href={`#/${p.path}`} aria-current={here === p.path ? 'page' : undefined}>{p.name}</a>
          ))}
        </nav>
        <div class="choices">
          <TenantChoice />
          <Select label="Times in" value={zoneChoice.value} set={(v) => { zoneChoice.value = v as Zone; }}
            options={[['viewer', `My zone (${viewerZone})`], ['utc', 'UTC'], ['job', 'The job’s zone']]} />
          <Select label="Colours" value={themeChoice.value} set={(v) => { themeChoice.value = v as Theme; }}
            options={[['system', 'System’s'], ['light', 'Light'], ['dark', 'Dark']]} />
          <div class="who">
            <small class="muted" title={s.id}>{s.authentication === 'none' ? 'no keys asked for' : s.role}</small>
            {s.authentication === 'keys' && (
              <button type="button" class="small" disabled={busy} onClick={() => act(signOut)}>Sign out</button>
            )}
          </div>
        </div>
      </header>
      {trouble.value && <div class="banner" role="alert">{trouble.value}</div>}
      <main id="main" tabIndex={-1}>{tenant.value ? <Screen key={tenant.value} /> : null}</main>
      <Messages />
    </>
  );
}

async function begin() {
  try {
    session.value = (await call<spec.Session>('GET', 'session')).data;
  } catch (err) {
    if (err instanceof Problem && err.status < 500) {
      session.value = null;
      return;
    }
    setTimeout(begin, 3000);
  }
}

void begin();
const root = document.getElementById('page')!;
root.textContent = '';
render(<Page />, root);
