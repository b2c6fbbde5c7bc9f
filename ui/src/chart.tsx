// Charts, and the time line of a job's instants.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import type * as spec from './spec';
import { theme } from './theme';
import { clock, clockChange, day, offset, show, zoneFor } from './time';

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export interface Line {
  label: string;
  colour: string;
  values: (number | null)[];
  bars?: boolean;
}

// powers leaves out what is no power of ten.
const powers = (_u: uPlot, all: number[]) => all.map((v) => (Number.isInteger(Math.round(Math.log10(v) * 1e6) / 1e6) ? v : null));

const large = (v: number) => (v >= 1e6 ? `${v / 1e6} M` : v >= 1e4 ? `${v / 1e3} k` : String(v));

// Chart draws lines or bars over time; times are seconds. summary is what it shows in words. With least, the values are
// drawn by their orders of magnitude, from that one on; text formats a value.
export function Chart({ times, lines, zone, summary, height, least, text = large }: {
  times: number[]; lines: Line[]; zone: string; summary: string; height?: number; least?: number; text?: (v: number) => string;
}) {
  const place = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  const shape = lines.map((l) => l.label).join() + zone + theme.value;
  const data = [times, ...lines.map((l) => l.values)] as uPlot.AlignedData;
  useEffect(() => {
    const box = place.current!;
    const grid = { stroke: colour('--line'), width: 1 };
    const axis = { stroke: colour('--muted'), grid, ticks: { show: false }, font: '11px system-ui', labelFont: '11px system-ui' };
    const bars = uPlot.paths.bars!({ size: [0.7, 40] });
    plot.current = new uPlot({
      width: Math.max(200, box.clientWidth), height: height ?? 180,
      tzDate: (s) => uPlot.tzDate(new Date(s * 1000), zone),
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { y: least ? { distr: 3, range: (_u, _min, max) => [least, Math.max(least * 10, 10 ** Math.ceil(Math.log10(max)))] } : { range: (_u, _min, max) => [0, Math.max(1, max * 1.1)] } },
      axes: [{ ...axis, size: 26, space: 70, values: (_u, all) => all.map((s) => clock(new Date(s * 1000), zone)) }, { ...axis, size: 52, ...(least ? { filter: powers, grid: { ...grid, filter: powers } } : {}), values: (_u, all) => all.map((v) => (v === null ? '' : text(v))) }],
      series: [{}, ...lines.map((l) => ({
        label: l.label, stroke: colour(l.colour), fill: colour(l.colour) + (l.bars ? 'b0' : '22'), width: l.bars ? 0 : 2,
        points: { show: false }, ...(l.bars ? { paths: bars } : {}),
      }))],
    }, data, box);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, box.clientWidth), height: height ?? 180 }));
    observer.observe(box);
    return () => { observer.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  return (
    <figure class="chart">
      <div ref={place} role="img" aria-label={summary} />
      <figcaption>
        {lines.map((l) => <span key={l.label}><i class={`dot ${l.colour.slice(2)}`} />{l.label}</span>)}
        <span class="muted">{summary}</span>
      </figcaption>
    </figure>
  );
}

// TimeLine places a job's next instants on a line. Changes of the zone's clocks are marked, and so are the times that
// they leave out.
export function TimeLine({ preview, jobsZone, pick, picked, now }: {
  preview: spec.Preview; jobsZone: string | undefined; pick?: (at: string) => void; picked?: string | undefined; now: number;
}) {
  const items = preview.items;
  if (items.length === 0) return <p class="empty">No instants are to come.</p>;
  const times = items.map((i) => Date.parse(i.firesAt ?? i.timestamp));
  const from = Math.min(now, times[0]!), to = times.at(-1)!, length = Math.max(1, to - from);
  const place = (t: number) => `${2 + (96 * (t - from)) / length}%`;
  const zone = zoneFor(jobsZone), clocks = preview.timezone || 'UTC';
  const marks: { at: number; text: string }[] = [];
  let before = from;
  for (const t of [...times, to]) {
    const change = clockChange(before, t, clocks);
    if (change !== undefined) marks.push({ at: change, text: `${offset(new Date(change - 1000), clocks)} → ${offset(new Date(change), clocks)}` });
    before = t;
  }
  const labels: { at: number; text: string }[] = [];
  const steps = 5;
  for (let i = 0; i <= steps; i++) {
    const t = from + (length * i) / steps;
    labels.push({ at: t, text: length > 2 * 86400e3 ? day(new Date(t), zone) : clock(new Date(Math.round(t / 1000) * 1000), zone) });
  }
  return (
    <div class="timeline">
      <div class="track">
        <span class="now" style={{ left: place(Math.min(Math.max(now, from), to)) }} title="now" />
        {marks.map((m) => <span key={m.at} class="change" style={{ left: place(m.at) }}><b>clocks {m.text}</b></span>)}
        {preview.leftOut.map((l) => (
          <span key={l.at} class="gap" style={{ left: place(Date.parse(l.at)) }} title={l.note}>✕</span>
        ))}
        {items.map((i, n) => {
          const at = i.timestamp, name = `${show(at, zone)}${i.note ? `: ${i.note}` : ''}`;
          const look = `instant${i.effect ? ' effect' : ''}${picked === at ? ' picked' : ''}`;
          return pick
            ? <button key={n} type="button" class={look} style={{ left: place(times[n]!) }} title={name} aria-label={`Explain ${name}`}
                aria-pressed={picked === at} onClick={() => pick(at)} />
            : <span key={n} class={look} style={{ left: place(times[n]!) }} title={name} />;
        })}
      </div>
      <div class="scale" aria-hidden="true">{labels.map((l, i) => <span key={i} style={{ left: place(l.at) }}>{l.text}</span>)}</div>
    </div>
  );
}
