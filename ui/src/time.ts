// Instants as people read them, in the zone that the viewer chose.

import { signal } from '@preact/signals';

export type Choice = 'viewer' | 'utc' | 'job';

const stored = localStorage.getItem('zone');
export const zoneChoice = signal<Choice>(stored === 'utc' || stored === 'job' ? stored : 'viewer');
zoneChoice.subscribe((z) => localStorage.setItem('zone', z));

export const viewerZone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';

// zoneFor returns the zone to show instants in, of a job with a zone or of none.
export function zoneFor(jobs?: string): string {
  if (zoneChoice.value === 'utc') return 'UTC';
  if (zoneChoice.value === 'job' && jobs) return jobs;
  return viewerZone;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function parts(at: Date, zone: string): Record<string, string> {
  let format = formats.get(zone);
  if (!format) {
    const options: Intl.DateTimeFormatOptions = {
      year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit',
      fractionalSecondDigits: 3, hourCycle: 'h23', weekday: 'short', timeZoneName: 'shortOffset', timeZone: zone,
    };
    try {
      format = new Intl.DateTimeFormat('en-GB', options);
    } catch {
      format = new Intl.DateTimeFormat('en-GB', { ...options, timeZone: 'UTC' });
    }
    formats.set(zone, format);
  }
  return Object.fromEntries(format.formatToParts(at).map((p) => [p.type, p.value]));
}

// show formats an instant, with its zone's offset.
export function show(at: string | Date, zone: string, weekday = true): string {
  const p = parts(new Date(at), zone);
  const millis = p.fractionalSecond === '000' ? '' : `.${p.fractionalSecond}`;
  return `${weekday ? `${p.weekday} ` : ''}${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}${millis} ${offset(at, zone)}`;
}

// clock formats the time of day.
export function clock(at: string | Date, zone: string): string {
  const p = parts(new Date(at), zone);
  return p.second === '00' ? `${p.hour}:${p.minute}` : `${p.hour}:${p.minute}:${p.second}`;
}

export function day(at: string | Date, zone: string): string {
  const p = parts(new Date(at), zone);
  return `${p.weekday} ${p.day}.${p.month}.`;
}

// offset returns a zone's offset at an instant, such as UTC+1.
export function offset(at: string | Date, zone: string): string {
  return (parts(new Date(at), zone).timeZoneName ?? '').replace('GMT', 'UTC').replace(/\+0$/, '');
}

// clockChange returns the instant between two others at which the zone's clocks change; undefined if they do not.
export function clockChange(from: number, to: number, zone: string): number | undefined {
  const after = offset(new Date(to), zone);
  if (offset(new Date(from), zone) === after) return undefined;
  while (to - from > 1000) {
    const middle = (from + to) / 2;
    if (offset(new Date(middle), zone) === after) to = middle;
    else from = middle;
  }
  return Math.round(to / 1000) * 1000;
}

// now is the present time, renewed each second while the page is seen.
export const now = signal(Date.now());
setInterval(() => {
  if (document.visibilityState === 'visible') now.value = Date.now();
}, 1000);

const units: [number, string][] = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

// span formats a number of seconds in two units at most.
export function span(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  let rest = Math.round(seconds);
  const shown: string[] = [];
  for (const [size, unit] of units) {
    if (rest >= size && shown.length < 2) {
      shown.push(`${Math.floor(rest / size)} ${unit}`);
      rest %= size;
    } else if (shown.length > 0) break;
  }
  return shown.join(' ');
}

// relative formats an instant as seen from now.
export function relative(at: string, from: number): string {
  const seconds = (Date.parse(at) - from) / 1000;
  if (Math.abs(seconds) < 1) return 'now';
  return seconds > 0 ? `in ${span(Math.floor(seconds))}` : `${span(Math.floor(-seconds))} ago`;
}

// secondsOf reads a duration as the API has them: a number of seconds, or a text such as 1m30.5s.
export function secondsOf(d: unknown): number | undefined {
  if (typeof d === 'number') return d;
  if (typeof d !== 'string') return undefined;
  const sizes: Record<string, number> = { ns: 1e-9, us: 1e-6, 'µs': 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
  let total = 0, found = false;
  for (const [, n, unit] of d.matchAll(/([0-9.]+)(ns|us|µs|ms|s|m|h|d|w)/g)) {
    total += Number(n) * sizes[unit!]!;
    found = true;
  }
  return found ? total : undefined;
}

// brief shortens a duration as the API has them: 6h0m0s is 6h.
export const brief = (d: string): string => d.replace(/([hm])0s$/, '$1').replace(/h0m$/, 'h');

// wall formats a wall time as the API has them.
export const wall = (local: string): string => local.replace('T', ' ').replace('.000', '').replace(/([+-]\d\d:\d\d|Z)$/, ' $1');

export const number = (n: number): string => n.toLocaleString('en-GB', { maximumFractionDigits: n < 10 ? 1 : 0 });
