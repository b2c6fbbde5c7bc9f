// API keys.

import { useState } from 'preact/hooks';
import { at, call, get, session } from './client';
import { LimitFields, limitsOf, limitsText } from './limits';
import { At, Badge, Confirm, Dialog, Failure, Loaded, Pages, say, Select, Shown, Table, Text, useAct, usePages, usePoll } from './parts';
import type * as spec from './spec';
import { now } from './time';

export function Keys() {
  const pages = usePages([]);
  const load = usePoll((s) => get<spec.ApiKeyPage>('keys', { signal: s, query: { limit: 100, cursor: pages.cursor } }), 15, [pages.cursor]);
  const [making, setMaking] = useState(false), [shown, setShown] = useState<spec.ShownApiKey>();
  const [rotating, setRotating] = useState<spec.ApiKey>(), [revoking, setRevoking] = useState<spec.ApiKey>();
  return (
    <>
      <div class="row title"><h1>Keys</h1><button type="button" class="primary" onClick={() => setMaking(true)}>New key</button></div>
      <Loaded of={load}>{(page) => (
        <>
          <Table label="Keys" head={['Key', 'Role', 'Tenants', 'Prefix', 'Note', 'Created', 'Last used', 'Ends', '']} empty="There are no keys.">
            {page.items.map((k) => (
              <tr key={k.id}>
                <td class="key">{k.id} {k.id === session.value?.id && <Badge tone="info">yours</Badge>}</td><td>{k.role}</td>
                <td class="text">{k.tenants.join(', ')}</td><td class="key">{k.keyPrefix ?? ''}</td><td class="text">{k.note ?? ''} {k.limits && <small class="muted">{limitsText(k.limits)}</small>}</td>
                <td><At at={k.createdAt} brief /> <small class="muted">by {k.createdBy}</small></td><td><At at={k.lastUsed} brief /></td>
                <td>{k.expiresAt ? <>{Date.parse(k.expiresAt) < now.value && <Badge tone="bad">expired</Badge>} <At at={k.expiresAt} brief /></> : 'never'}</td>
                <td class="row end">
                  <button type="button" class="small" aria-label={`Rotate ${k.id}`} onClick={() => setRotating(k)}>Rotate</button>
                  <button type="button" class="small danger" aria-label={`Revoke ${k.id}`} onClick={() => setRevoking(k)}>Revoke</button>
                </td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page.nextCursor} />
        </>
      )}</Loaded>
      {making && <NewKey close={() => setMaking(false)} made={(k) => { setMaking(false); setShown(k); load.reload(); }} />}
      {rotating && <Rotate of={rotating} close={() => setRotating(undefined)} done={(k) => { setRotating(undefined); setShown(k); load.reload(); }} />}
      {revoking && (
        <Confirm title="Revoke this key?" action="Revoke" danger close={() => setRevoking(undefined)} run={async () => {
          await call('DELETE', `keys/${at(revoking.id)}`);
          say(`The key ${revoking.id} is revoked.`);
          load.reload();
        }}>
          <p><b class="key">{revoking.id}</b> {revoking.note && <>({revoking.note})</>} ends for good, everywhere within five seconds.{revoking.id === session.value?.id && ' You are signed in with it.'}</p>
        </Confirm>
      )}
      {shown && <Shown title={`The key ${shown.id}`} secret={shown.key} close={() => setShown(undefined)} />}
    </>
  );
}

function NewKey({ close, made }: { close: () => void; made: (k: spec.ShownApiKey) => void }) {
  const mine = session.value!;
  const [role, setRole] = useState('submitter'), [tenants, setTenants] = useState(mine.tenants.includes('*') ? '*' : mine.tenants.join(', '));
  const [prefix, setPrefix] = useState(mine.keyPrefix ?? ''), [expires, setExpires] = useState(''), [note, setNote] = useState('');
  const [limits, setLimits] = useState({});
  const [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <Dialog title="New key" close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void act(async () => {
          setError(undefined);
          try {
            const body = {
              role, tenants: tenants.split(/[\s,]+/).filter(Boolean), ...(prefix ? { keyPrefix: prefix } : {}), ...(note ? { note } : {}),
              ...(expires ? { expiresAt: new Date(expires).toISOString() } : {}), ...(Object.keys(limitsOf(limits)).length > 0 ? { limits: limitsOf(limits) } : {}),
            };
            made((await call<spec.ShownApiKey>('POST', 'keys', { body })).data);
          } catch (err) { setError(err instanceof RangeError ? new SyntaxError('The end is not a date.') : err); }
        });
      }}>
        <Select label="Role" value={role} set={setRole} options={[['viewer', 'viewer: reads'], ['submitter', 'submitter: also puts and cancels jobs'], ['operator', 'operator: also pauses, triggers, redrives, sets tenants and secrets'], ['admin', 'admin: also keys and limits']]} />
        <Text label="Tenants" value={tenants} set={setTenants} required hint="Names with commas between them, or * for all." />
        <Text label="Keys of jobs begin with" value={prefix} set={setPrefix} placeholder="anything" />
        <Text label="Ends" type="datetime-local" value={expires} set={setExpires} hint="By this browser’s clock. Empty: never." />
        <Text label="Note" value={note} set={setNote} placeholder="what it is for" />
        <details><summary>Limits of its own</summary><LimitFields of={limits} set={setLimits} /></details>
        <Failure error={error} />
        <div class="row end"><button type="button" onClick={close}>Make none</button><button class="primary" disabled={busy}>Create</button></div>
      </form>
    </Dialog>
  );
}

function Rotate({ of, close, done }: { of: spec.ApiKey; close: () => void; done: (k: spec.ShownApiKey) => void }) {
  const [overlap, setOverlap] = useState('24h'), [error, setError] = useState<unknown>();
  const { busy, act } = useAct();
  return (
    <Dialog title={`Rotate ${of.id}`} close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void act(async () => {
          setError(undefined);
          try { done((await call<spec.ShownApiKey>('POST', `keys/${at(of.id)}/rotate`, { body: { overlap } })).data); } catch (err) { setError(err); }
        });
      }}>
        <p>The key gets another secret. The present one stays valid for a time, so that clients can change over.</p>
        <Text label="The present one is valid for another" value={overlap} set={setOverlap} hint="Such as 24h or 7d; 0s ends it now." />
        <Failure error={error} />
        <div class="row end"><button type="button" onClick={close}>Keep it</button><button class="primary" disabled={busy}>Rotate</button></div>
      </form>
    </Dialog>
  );
}
