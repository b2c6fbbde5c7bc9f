// The colours: those of the system, or the ones that the viewer chose.

import { computed, signal } from '@preact/signals';

export type Choice = 'system' | 'light' | 'dark';

const stored = localStorage.getItem('theme');
export const themeChoice = signal<Choice>(stored === 'light' || stored === 'dark' ? stored : 'system');

const dark = matchMedia('(prefers-color-scheme: dark)');
const systemDark = signal(dark.matches);
dark.addEventListener('change', () => { systemDark.value = dark.matches; });

export const theme = computed(() =>
  themeChoice.value === 'system' ? (systemDark.value ? 'dark' : 'light') : themeChoice.value);

themeChoice.subscribe((t) => localStorage.setItem('theme', t));
theme.subscribe((t) => { document.documentElement.dataset.theme = t; });
