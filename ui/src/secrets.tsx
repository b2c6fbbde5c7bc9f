// Named secrets and signing secrets of a tenant.

import { useState } from 'preact/hooks';
import { at, call, get, may, tenant } from './client';
import { At, Badge, Card, Check, Confirm, Dialog, Failure, Loaded, Pages, say, Shown, Table, Text, useAct, usePages, usePoll } from './parts';
import type * as spec from './spec';

export function Secrets() {
  return (
    <>
      <h1>Secrets of the tenant {tenant.value}</h1>
      <div class="stack"><Signing /><Named /></div>
    </>
  );
}

function Signing() {
  const pages = usePages([tenant.value]);
  const load = usePoll((s) => get<spec.SigningSecretPage>('signing-secrets', { ofJobs: true, signal: s, query: { limit: 100, cursor: pages.cursor } }), 15, [pages.cursor]);
  const [making, setMaking] = useState(false), [rotating, setRotating] = useState<string>(), [deleting, setDeleting] = useState<string>();
  const [shown, setShown] = useState<spec.SigningSecretOnce>();
  return (
    <Card title="Signing secrets" wide actions={may('operate') && <button type="button" class="small" onClick={() => setMaking(true)}>New signing secret</button>}>
      <p class="muted">Deliveries are signed with them, by Standard Webhooks. The one called <code>default</code> signs what names none.</p>
      <Loaded of={load}>{(page) => (
        <>
          <Table label="Signing secrets" head={['Name', 'Valid', 'Created', 'Changed', '']} empty="There is none; deliveries are not signed.">
            {page.items.map((s) => (
              <tr key={s.name}>
                <td class="key">{s.name} {s.name === 'default' && <Badge tone="info">by default</Badge>}</td>
                <td>{s.valid.map((g, i) => <div key={i}>{g.until ? <>the one before, until <At at={g.until} brief /></> : 'the present one'} {g.publicKey && <code>{g.publicKey}</code>}</div>)}</td>
                <td><At at={s.createdAt} brief /></td><td><At at={s.updatedAt} brief /></td>
                <td class="row end">{may('operate') && <>
                  <button type="button" class="small" aria-label={`Rotate ${s.name}`} onClick={() => setRotating(s.name)}>Rotate</button>
                  <button type="button" class="small danger" aria-label={`Delete ${s.name}`} onClick={() => setDeleting(s.name)}>Delete</button>
                </>}</td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page.nextCursor} />
        </>
      )}</Loaded>
      {making && <NewSigning close={() => setMaking(false)} made={(s) => { setMaking(false); setShown(s); load.reload(); }} />}
      {rotating && <RotateSigning of={rotating} close={() => setRotating(undefined)} done={(s) => { setRotating(undefined); setShown(s); load.reload(); }} />}
      {deleting && (
        <Confirm title="Delete this signing secret?" action="Delete" danger close={() => setDeleting(undefined)} run={async () => {
          await call('DELETE', `signing-secrets/${at(deleting)}`, { ofJobs: true });
          say(`The signing secret ${deleting} is deleted.`);
          load.reload();
        }}><p>Deliveries of jobs that name <b class="key">{deleting}</b> are not sent without it.</p></Confirm>
      )}
      {shown && <Shown title={`The signing secret ${shown.name}`} secret={shown.secret} close={() => setShown(undefined)}>it encrypted</Shown>}
    </Card>
  );
}

function NewSigning({ close, made }: { close: () => void; made: (s: spec.SigningSecretOnce) => void }) {
  const [name, setName] = useState('default'), [given, setGiven] = useState(''), [ed25519, setEd25519] = useState(false);
  const [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <Dialog title="New signing secret" close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void act(async () => {
          setError(undefined);
          try {
            const body = { name, ...(given ? { secret: given } : {}), ...(ed25519 ? { ed25519 } : {}) };
            made((await call<spec.SigningSecretOnce>('POST', 'signing-secrets', { ofJobs: true, body })).data);
          } catch (err) { setError(err); }
        });
      }}>
        <Text label="Name" value={name} set={setName} required />
        <Text label="The secret, if you have one" type="password" value={given} set={setGiven} placeholder="whsec_… (else one is made)" />
        <Check label="Sign by Ed25519 too, with a public key for receivers" value={ed25519} set={setEd25519} />
        <Failure error={error} />
        <div class="row end"><button type="button" onClick={close}>Make none</button><button class="primary" disabled={busy}>Create</button></div>
      </form>
    </Dialog>
  );
}

function RotateSigning({ of, close, done }: { of: string; close: () => void; done: (s: spec.SigningSecretOnce) => void }) {
  const [overlap, setOverlap] = useState('24h'), [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <Dialog title={`Rotate ${of}`} close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void act(async () => {
          setError(undefined);
          try {
            done((await call<spec.SigningSecretOnce>('POST', `signing-secrets/${at(of)}/rotate`, { ofJobs: true, body: overlap ? { overlap } : {} })).data);
          } catch (err) { setError(err); }
        });
      }}>
        <p>From now on deliveries are signed with a new secret, and with the present one for a time, so that receivers can change over.</p>
        <Text label="The present one signs for another" value={overlap} set={setOverlap} hint="Such as 24h or 7d." />
        <Failure error={error} />
        <div class="row end"><button type="button" onClick={close}>Keep it</button><button class="primary" disabled={busy}>Rotate</button></div>
      </form>
    </Dialog>
  );
}

function Named() {
  const pages = usePages([tenant.value]);
  const load = usePoll((s) => get<spec.SecretPage>('secrets', { ofJobs: true, signal: s, query: { limit: 100, cursor: pages.cursor } }), 15, [pages.cursor]);
  const [setting, setSetting] = useState<spec.Secret | 'new'>(), [deleting, setDeleting] = useState<string>();
  return (
    <Card title="Named secrets" wide actions={may('operate') && <button type="button" class="small" onClick={() => setSetting('new')}>New secret</button>}>
      <p class="muted">Callbacks name them in headers, and get their values only when they are sent. Values can’t be read.</p>
      <Loaded of={load}>{(page) => (
        <>
          <Table label="Named secrets" head={['Name', 'May be sent to', 'Created', 'Changed', '']} empty="There are none.">
            {page.items.map((s) => (
              <tr key={s.name}>
                <td class="key">{s.name}</td><td class="key">{s.destinations?.join(', ') ?? 'any destination'}</td>
                <td><At at={s.createdAt} brief /></td><td><At at={s.updatedAt} brief /></td>
                <td class="row end">{may('operate') && <>
                  <button type="button" class="small" aria-label={`Set ${s.name}`} onClick={() => setSetting(s)}>Set</button>
                  <button type="button" class="small danger" aria-label={`Delete ${s.name}`} onClick={() => setDeleting(s.name)}>Delete</button>
                </>}</td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page.nextCursor} />
        </>
      )}</Loaded>
      {setting && <SetSecret of={setting === 'new' ? undefined : setting} close={() => setSetting(undefined)} done={() => { setSetting(undefined); load.reload(); }} />}
      {deleting && (
        <Confirm title="Delete this secret?" action="Delete" danger close={() => setDeleting(undefined)} run={async () => {
          await call('DELETE', `secrets/${at(deleting)}`, { ofJobs: true });
          say(`The secret ${deleting} is deleted.`);
          load.reload();
        }}><p>Callbacks that name <b class="key">{deleting}</b> are not sent without it.</p></Confirm>
      )}
    </Card>
  );
}

function SetSecret({ of, close, done }: { of: spec.Secret | undefined; close: () => void; done: () => void }) {
  const [name, setName] = useState(of?.name ?? ''), [value, setValue] = useState(''), [to, setTo] = useState(of?.destinations?.join(', ') ?? '');
  const [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <Dialog title={of ? `Set ${of.name}` : 'New secret'} close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void act(async () => {
          setError(undefined);
          try {
            const destinations = to.split(',').map((d) => d.trim()).filter(Boolean);
            await call('PUT', `secrets/${at(name)}`, { ofJobs: true, body: { value, ...(destinations.length > 0 ? { destinations } : {}) } });
            say(`The secret ${name} is stored.`);
            done();
          } catch (err) { setError(err); }
        });
      }}>
        {!of && <Text label="Name" value={name} set={setName} required />}
        <Text label="Value" type="password" value={value} set={setValue} required />
        <Text label="May be sent to" value={to} set={setTo} placeholder="any destination" hint="Such as http https://api.example.com, with commas between several." />
        <Failure error={error} />
        <div class="row end"><button type="button" onClick={close}>Store nothing</button><button class="primary" disabled={busy}>Store</button></div>
      </form>
    </Dialog>
  );
}
