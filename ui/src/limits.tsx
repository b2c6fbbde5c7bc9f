// The limits of a key or of a tenant.

import { numeric, type Json } from './json';
import { Text } from './parts';
import type * as spec from './spec';
import { number } from './time';

const names = {
  requestsPerSecond: 'Requests per second', requestBurst: 'Requests at once', batchBytesPerSecond: 'Bytes of batches per second',
  maxJobs: 'Jobs', maxPending: 'Pending occurrences', maxPayload: 'Bytes of a payload',
} satisfies Record<keyof spec.Limits, string>;
const all = Object.entries(names) as [keyof spec.Limits, string][];

export type LimitsForm = Record<string, string>;

export const limitsForm = (of: { [name: string]: unknown }): LimitsForm =>
  Object.fromEntries(Object.entries(of).filter(([, v]) => v !== undefined && v !== null).map(([n, v]) => [n, String(v)]));

// limitsOf leaves out what is empty. Limits are numbers, except how long history is kept.
export const limitsOf = (f: LimitsForm): { [name: string]: Json } =>
  Object.fromEntries(Object.entries(f).filter(([, v]) => v.trim() !== '').map(([n, v]) => [n, n in names ? numeric(v) : v.trim()]));

// LimitFields are the fields. Effective are the limits that apply where a field is empty, if they are known.
export function LimitFields({ of, set, effective }: { of: LimitsForm; set: (f: LimitsForm) => void; effective?: spec.Limits }) {
  const otherwise = (name: keyof spec.Limits) => (effective ? (effective[name] ? String(effective[name]) : 'no limit') : 'the service’s');
  return (
    <div class="pairs">{all.map(([name, text]) => (
      <Text key={name} label={text} value={of[name] ?? ''} set={(v) => set({ ...of, [name]: v })} placeholder={otherwise(name)} />
    ))}</div>
  );
}

// limitsText lists limits in words.
export const limitsText = (of: spec.Limits): string =>
  all.filter(([name]) => typeof of[name] === 'number').map(([name, text]) => `${text}: ${of[name] ? number(of[name]!) : 'no limit'}`).join('; ');
