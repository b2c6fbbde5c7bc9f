// The jobs of a tenant.

import { useEffect, useState } from 'preact/hooks';
import { get, may, session, tenant } from './client';
import { At, Badge, Field, jobLink, Loaded, Pages, Select, Table, usePages, usePoll } from './parts';
import type * as spec from './spec';

// The filter stays while one looks at a job.
const kept = { prefix: '', state: '', kind: '', tenant: '' };

export function Jobs() {
  if (kept.tenant !== tenant.value) Object.assign(kept, { prefix: '', state: '', kind: '', tenant: tenant.value });
  const [prefix, setPrefix] = useState(kept.prefix), [asked, setAsked] = useState(kept.prefix), [state, setState] = useState(kept.state), [kind, setKind] = useState(kept.kind);
  useEffect(() => {
    Object.assign(kept, { prefix, state, kind });
    const timer = setTimeout(() => setAsked(prefix), 200);
    return () => clearTimeout(timer);
  }, [prefix, state, kind]);
  const pages = usePages([asked, state, kind]);
  const load = usePoll((s) => get<spec.JobPage>('jobs', {
    ofJobs: true, signal: s, query: { prefix: asked, state, kind, limit: 50, cursor: pages.cursor },
  }), 10, [asked, state, kind, pages.cursor]);
  return (
    <>
      <div class="row title">
        <h1>Jobs</h1>
        {may('submit') && <a class="button primary" href="#/new">New job</a>}
      </div>
      <form class="row filter" role="search" onSubmit={(e) => { e.preventDefault(); setAsked(prefix); }}>
        <Field label="Key begins with">{(id) => (
          <input id={id} type="search" value={prefix} placeholder={session.value?.keyPrefix || 'any key'} spellcheck={false}
            onInput={(e) => setPrefix(e.currentTarget.value)} />
        )}</Field>
        <Select label="State" value={state} set={setState} options={[['', 'any state'], 'scheduled', 'paused', 'finished']} />
        <Select label="Kind" value={kind} set={setKind} options={[['', 'any kind'], ['instants', 'instants or a delay'], 'crontab', 'sequence']} />
      </form>
      <Loaded of={load}>{(page) => (
        <>
          <Table label="Jobs" head={['Key', 'State', 'Next instant', 'Callback', 'Changed']}
            empty={asked || state || kind ? (page.nextCursor ? 'None on this page; look at the next one.' : 'No job is like that.') : 'There are no jobs yet.'}>
            {page.items.map((j) => (
              <tr key={j.key}>
                <td class="key"><a href={jobLink(j.key)}>{j.key}</a></td>
                <td><Badge>{j.state}</Badge></td>
                <td><At at={j.nextInstant} /></td>
                <td>{j.callbackType}</td>
                <td><At at={j.updatedAt} brief /></td>
              </tr>
            ))}
          </Table>
          <Pages of={pages} next={page.nextCursor} />
        </>
      )}</Loaded>
    </>
  );
}
