// JSON as the service has it: numbers that JavaScript can't hold keep their digits, where the browser supports that.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

interface WithSource {
  rawJSON?: (text: string) => Json;
}

export function parse(text: string): Json {
  return JSON.parse(text, function (this: unknown, _name: string, value: Json, context?: { source?: string }) {
    const raw = (JSON as WithSource).rawJSON;
    if (typeof value === 'number' && raw && context?.source && String(value) !== context.source) return raw(context.source);
    return value;
  } as (name: string, value: unknown) => unknown);
}

export const print = (value: unknown): string => JSON.stringify(value, null, 2) ?? '';

const isRaw = (v: unknown) => !!(JSON as { isRawJSON?: (v: unknown) => boolean }).isRawJSON?.(v);

export function isObject(v: Json | undefined): v is { [name: string]: Json } {
  return typeof v === 'object' && v !== null && !Array.isArray(v) && !isRaw(v);
}

export const same = (a: Json | undefined, b: Json | undefined): boolean => {
  if (isObject(a) && isObject(b)) {
    const names = Object.keys(a);
    return names.length === Object.keys(b).length && names.every((n) => n in b && same(a[n], b[n]));
  }
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((v, i) => same(v, b[i]));
  return JSON.stringify(a) === JSON.stringify(b);
};

// mergePatch returns the JSON merge patch (RFC 7396) that makes one document of another; undefined if they are the same.
export function mergePatch(from: Json, to: Json): Json | undefined {
  if (same(from, to)) return undefined;
  if (!isObject(from) || !isObject(to)) return to;
  const patch: { [name: string]: Json } = {};
  for (const name of Object.keys(from)) if (!(name in to)) patch[name] = null;
  for (const [name, value] of Object.entries(to)) {
    const part = name in from ? mergePatch(from[name]!, value) : value;
    if (part !== undefined) patch[name] = part;
  }
  return patch;
}

// applyPatch applies a JSON merge patch.
export function applyPatch(to: Json, patch: Json): Json {
  if (!isObject(patch)) return patch;
  const result: { [name: string]: Json } = isObject(to) ? { ...to } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name];
    else result[name] = applyPatch(result[name] ?? null, value);
  }
  return result;
}

export interface Change {
  path: string;
  from?: Json;
  to?: Json;
}

// changes lists what a document has that another has not, by JSON pointers.
export function changes(from: Json | undefined, to: Json | undefined, path = ''): Change[] {
  if (same(from, to)) return [];
  if (!isObject(from) || !isObject(to)) return [{ path: path || '/', from, to }];
  const names = [...new Set([...Object.keys(from), ...Object.keys(to)])];
  return names.flatMap((n) => changes(from[n], to[n], `${path}/${n.replaceAll('~', '~0').replaceAll('/', '~1')}`));
}

// numeric reads a number; what is none stays as it is, so that the service names the field.
export const numeric = (text: string): Json => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text);
