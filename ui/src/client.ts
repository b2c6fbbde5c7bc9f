// The page's only way to the service: its public API, beside this page, so that it works under any prefix.

import { signal } from '@preact/signals';
import type * as spec from './spec';
import { parse } from './json';

export const api = new URL('../v1/', document.baseURI);

// session is who is signed in: undefined before that is known, null for nobody.
export const session = signal<spec.Session | null | undefined>(undefined);

// tenant is the tenant that requests about jobs are for.
export const tenant = signal('');

// trouble is the reason why the service does not answer as it should; empty if it does.
export const trouble = signal('');

// Problem is an answer that is not what was asked for.
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly fields: { name: string; message: string }[] = [],
    readonly requestId = '',
  ) {
    super(detail);
  }
}

export interface Options {
  query?: Record<string, string | number | undefined>;
  body?: unknown;
  // ofJobs adds the tenant.
  ofJobs?: boolean;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  key?: string;
}

export interface Answer<T> {
  data: T;
  etag: string;
  status: number;
}

// at makes a path of its parts, which may contain anything. Browsers take . and .. for folders, even if they are escaped, so
// the API has other spellings of names that are just these.
export const at = (...parts: string[]): string =>
  parts.map((p) => encodeURIComponent(p === '.' || p === '..' ? `$carillon:${p}` : p)).join('/');

export async function call<T>(method: string, path: string, o: Options = {}): Promise<Answer<T>> {
  const url = new URL(path, api);
  for (const [name, value] of Object.entries(o.query ?? {})) {
    if (value !== undefined && value !== '') url.searchParams.set(name, String(value));
  }
  const headers: Record<string, string> = { Accept: 'application/json', ...o.headers };
  if (o.ofJobs && tenant.value) headers['Carillon-Tenant'] = tenant.value;
  if (o.key) headers['Authorization'] = `Bearer ${o.key}`;
  if (o.body !== undefined) headers['Content-Type'] ??= 'application/json';
  let response: Response, text: string;
  try {
    response = await fetch(url, {
      method,
      headers,
      body: o.body === undefined ? undefined : JSON.stringify(o.body),
      signal: o.signal ?? null,
      credentials: 'same-origin',
      redirect: 'error',
      cache: 'no-store',
    });
    text = await response.text();
  } catch (err) {
    if (!o.signal?.aborted) trouble.value = 'The service can’t be reached. What is shown may be old; the page keeps trying.';
    throw err;
  }
  if (response.status >= 500) {
    trouble.value =
      response.status === 503
        ? 'The service answers, but its store does not, or is overloaded. What is shown may be old; the page keeps trying.'
        : 'The service has failed; its log has the cause.';
  } else {
    trouble.value = '';
  }
  let data: unknown;
  try {
    data = text ? parse(text) : undefined;
  } catch {
    throw new Problem(response.status, 'The answer is not from this service. Is there a proxy in between?');
  }
  if (!response.ok) {
    const p = data as Partial<spec.Problem> | undefined;
    if (response.status === 401 && !o.key) session.value = null;
    throw new Problem(
      response.status,
      p?.detail ?? response.statusText,
      p?.errors?.map((e) => ({ name: ('pointer' in e ? e.pointer : e.parameter) ?? '', message: e.message })),
      p?.requestId,
    );
  }
  return { data: data as T, etag: (response.headers.get('ETag') ?? '').replace(/^W\//, ''), status: response.status };
}

export const get = async <T>(path: string, o: Options = {}): Promise<T> => (await call<T>('GET', path, o)).data;

// optional reads what an older service, or a smaller key, does not have: then it returns undefined.
export async function optional<T>(path: string, o: Options = {}): Promise<T | undefined> {
  try {
    return await get<T>(path, o);
  } catch (err) {
    if (err instanceof Problem && [403, 404, 405].includes(err.status)) return undefined;
    throw err;
  }
}

export const may = (p: 'read' | 'submit' | 'operate' | 'administer'): boolean =>
  session.value?.permissions.includes(p) ?? false;

// whole tells whether the key is for whole tenants.
export const whole = (): boolean => !session.value?.keyPrefix;

export const everyTenant = (): boolean => session.value?.tenants.includes('*') ?? false;

export async function signIn(key: string): Promise<void> {
  session.value = (await call<spec.Session>('POST', 'session', { key: key.trim() })).data;
}

export async function signOut(): Promise<void> {
  await call('DELETE', 'session');
  session.value = null;
}
