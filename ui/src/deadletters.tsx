// Dead letters: what could not be delivered, by error and destination.

import { useEffect, useRef, useState } from 'preact/hooks';
import { at, call, get, may, Problem, tenant } from './client';
import { print } from './json';
import { At, Badge, Card, Code, Confirm, Dialog, jobLink, Loaded, Pages, say, Table, Text, usePages, usePoll } from './parts';
import type * as spec from './spec';
import { number } from './time';

type Letter = spec.DeadLetter;
type What = 'redrive' | 'delete';

function destinationOf(l: Letter): string {
  const d = l.callback.data as Record<string, unknown>;
  if (l.callback.type === 'http') {
    try { return `http ${new URL(String(d.url)).origin}`; } catch { return 'http'; }
  }
  return `${l.callback.type} ${String(d.queue ?? d.exchange ?? d.topic ?? '')}`;
}

// kindOf leaves out what differs between failures of one kind: numbers and ids.
const kindOf = (error: string) => error.replace(/[0-9a-f]{8,}|\d+(\.\d+)*(ms|s)\b/gi, '…').slice(0, 160);

const id = (l: Letter) => l.id;

export function DeadLetters() {
  const [prefix, setPrefix] = useState(''), [chosen, setChosen] = useState<Set<string>>(new Set());
  const [asking, setAsking] = useState<{ what: What; ids: string[] | 'all' }>(), [shown, setShown] = useState<Letter>();
  const [progress, setProgress] = useState<{ done: number; of?: number; what: What }>();
  const stopped = useRef(false);
  useEffect(() => () => { stopped.current = true; }, []); // whoever leaves sees no progress any more
  const [group, setGroup] = useState('');
  const pages = usePages([prefix, tenant.value]);
  const load = usePoll((s) => get<spec.DeadLetterPage>('dead-letters', {
    ofJobs: true, signal: s, query: { limit: 100, prefix, cursor: pages.cursor },
  }), progress ? 0 : 5, [prefix, pages.cursor, !!progress]);

  const run = async (what: What, ids: string[] | 'all') => {
    if (ids === 'all') {
      let done = 0, cursor: string | undefined;
      stopped.current = false;
      setProgress({ done, what });
      const tell = (rest: string) => say(`${number(done)} dead letters are ${what === 'redrive' ? 'due again' : 'deleted'}${rest}.`);
      try {
        do {
          const o = { ofJobs: true, query: { ...(prefix ? { prefix } : { all: 'true' }), limit: 200, cursor } };
          const got = what === 'redrive'
            ? await call<spec.Redriven>('POST', 'dead-letters/redrive', o) : await call<spec.Deleted>('DELETE', 'dead-letters', o);
          done += 'redriven' in got.data ? got.data.redriven : got.data.deleted;
          cursor = got.data.nextCursor;
          setProgress({ done, what });
        } while (cursor && !stopped.current);
      } catch (err) {
        if (done > 0) tell('; then the service failed');
        throw err;
      } finally {
        setProgress(undefined);
      }
      tell(cursor ? '; you stopped before the rest' : '');
    } else {
      let done = 0, gone = 0;
      setProgress({ done, of: ids.length, what });
      try {
        for (const one of ids) {
          try {
            await call(what === 'redrive' ? 'POST' : 'DELETE', `dead-letters/${at(one)}${what === 'redrive' ? '/redrive' : ''}`, { ofJobs: true });
          } catch (err) {
            if (!(err instanceof Problem) || err.status !== 404) throw err;
            gone++;
          }
          setProgress({ done: ++done, of: ids.length, what });
        }
      } finally {
        setProgress(undefined);
      }
      say(`${number(done - gone)} dead letters are ${what === 'redrive' ? 'due again' : 'deleted'}${gone ? `; ${gone} were gone already` : ''}.`);
    }
    setChosen(new Set());
    load.reload();
  };

  return (
    <>
      <h1>Dead letters</h1>
      <p class="muted">Occurrences whose attempts are used up, or that can’t succeed. A redriven one is due at once, with all attempts before it.</p>
      <form class="row filter" role="search" onSubmit={(e) => e.preventDefault()}>
        <Text label="Key begins with" type="search" value={prefix} set={setPrefix} placeholder="any key" />
        <span class="grow" />
        {may('operate') && <>
          <button type="button" disabled={!!progress} onClick={() => setAsking({ what: 'redrive', ids: 'all' })}>Redrive all{prefix && ' of the filter'}</button>
          <button type="button" class="danger" disabled={!!progress} onClick={() => setAsking({ what: 'delete', ids: 'all' })}>Delete all{prefix && ' of the filter'}</button>
        </>}
      </form>
      {progress && (
        <p class="row" role="status">
          <progress max={progress.of ?? 1} value={progress.of === undefined ? undefined : progress.done} aria-label="Progress" />
          {number(progress.done)} {progress.of === undefined ? 'so far' : `of ${number(progress.of)}`} {progress.what === 'redrive' ? 'redriven' : 'deleted'}
          {progress.of === undefined && <button type="button" class="small" onClick={() => { stopped.current = true; }}>Stop</button>}
        </p>
      )}
      <Loaded of={load}>{(page) => {
        const groups = new Map<string, Letter[]>();
        for (const l of page.items) {
          const name = `${destinationOf(l)}\n${kindOf(l.error)}`;
          groups.set(name, [...groups.get(name) ?? [], l]);
        }
        const listed = group && groups.has(group) ? groups.get(group)! : page.items;
        const picked = listed.filter((l) => chosen.has(l.id)).map(id);
        return (
          <>
            {groups.size > 0 && (
              <Card title={`By destination and error${page.nextCursor || pages.page > 1 ? ', on this page' : ''}`} wide>
                <Table label="Dead letters by destination and error" head={['Destination', 'Error', 'Dead letters', '']}>
                  {[...groups].sort((a, b) => b[1].length - a[1].length).map(([name, all]) => (
                    <tr key={name} class={group === name ? 'on' : ''}>
                      <td class="key">{name.split('\n')[0]}</td><td class="text">{name.split('\n')[1]}</td><td class="n">{number(all.length)}</td>
                      <td class="row end">
                        <button type="button" class="small" aria-pressed={group === name} onClick={() => setGroup(group === name ? '' : name)}>{group === name ? 'Show all' : 'Show these'}</button>
                        {may('operate') && <button type="button" class="small" onClick={() => setAsking({ what: 'redrive', ids: all.map(id) })}>Redrive these</button>}
                      </td>
                    </tr>
                  ))}
                </Table>
              </Card>
            )}
            {may('operate') && page.items.length > 0 && (
              <div class="row">
                <label class="check"><input type="checkbox" checked={picked.length === listed.length && listed.length > 0}
                  onChange={(e) => setChosen(new Set(e.currentTarget.checked ? listed.map(id) : []))} /> Choose all that are shown</label>
                <button type="button" disabled={picked.length === 0 || !!progress} onClick={() => setAsking({ what: 'redrive', ids: picked })}>Redrive {number(picked.length)} chosen</button>
                <button type="button" class="danger" disabled={picked.length === 0 || !!progress} onClick={() => setAsking({ what: 'delete', ids: picked })}>Delete {number(picked.length)} chosen</button>
              </div>
            )}
            <Table label="Dead letters" head={[...(may('operate') ? [<span class="hidden">Chosen</span>] : []), 'Job', 'Instant', 'Failed', 'Attempts', 'Destination', 'Error', '']}
              empty={prefix ? 'None is like that.' : 'There are none: everything was delivered.'}>
              {listed.map((l) => (
                <tr key={l.id}>
                  {may('operate') && <td><input type="checkbox" aria-label={`Choose ${l.key} of ${l.timestamp}`} checked={chosen.has(l.id)} onChange={(e) => {
                    const all = new Set(chosen);
                    if (e.currentTarget.checked) all.add(l.id); else all.delete(l.id);
                    setChosen(all);
                  }} /></td>}
                  <td class="key"><a href={jobLink(l.key)}>{l.key}</a> {l.subscriber && <small class="muted">{l.subscriber}</small>}</td>
                  <td><At at={l.timestamp} brief /></td><td><At at={l.failedAt} /></td><td class="n">{l.attempt}</td>
                  <td class="key">{destinationOf(l)}</td><td class="text">{l.error}</td>
                  <td class="row end">
                    <button type="button" class="small" onClick={() => setShown(l)}>Look</button>
                    {may('operate') && <>
                      <button type="button" class="small" onClick={() => setAsking({ what: 'redrive', ids: [l.id] })}>Redrive</button>
                      <button type="button" class="small danger" onClick={() => setAsking({ what: 'delete', ids: [l.id] })}>Delete</button>
                    </>}
                  </td>
                </tr>
              ))}
            </Table>
            <Pages of={pages} next={page.nextCursor} />
          </>
        );
      }}</Loaded>
      {asking && (
        <Confirm title={asking.what === 'redrive' ? 'Redrive?' : 'Delete for good?'} danger={asking.what === 'delete'}
          action={asking.what === 'redrive' ? 'Redrive' : 'Delete'} close={() => setAsking(undefined)}
          run={() => { const { what, ids } = asking; setAsking(undefined); return run(what, ids); }}>
          <p>{asking.ids === 'all' ? <>All dead letters of the tenant <b>{tenant.value}</b>{prefix && <> whose keys begin with <b class="key">{prefix}</b></>}, also those on other pages,</>
            : <>{number(asking.ids.length)} dead letter{asking.ids.length === 1 ? '' : 's'}</>} {asking.what === 'redrive' ? 'will be sent again.' : 'will be deleted, undelivered.'}</p>
        </Confirm>
      )}
      {shown && (
        <Dialog title={shown.key} close={() => setShown(undefined)}>
          <p><Badge tone="bad">{`${shown.attempt} attempts`}</Badge> <At at={shown.failedAt} /></p>
          <p class="text">{shown.error}</p>
          <dl><dt>Dead letter</dt><dd class="key">{shown.id}</dd><dt>Delivery id</dt><dd class="key">{shown.deliveryId}</dd><dt>Instant</dt><dd><At at={shown.timestamp} /></dd></dl>
          <Code text={print(shown.callback)} label="Callback" />
        </Dialog>
      )}
    </>
  );
}
