// What a client in TypeScript does with the types that openapi-typescript makes. It is compiled, and not run: what is wrong
// in the specification shows as a type that is too wide, too narrow, or required where it need not be.
import createClient from 'openapi-fetch'
import type { components, paths, webhooks } from './api.ts'

type Schemas = components['schemas']

const client = createClient<paths>({ baseUrl: 'http://127.0.0.1:8080' })

// Each type of callback has its own data, and no field of the job is required that has a default.
const submitted: Schemas['NewJob'][] = [
  { key: 'a', delay: '1s', callback: { type: 'http', data: { url: 'https://example.com/hook' } }, retry: { maxAttempts: 3 } },
  { key: 'b', crontab: '@daily', callback: { type: 'rabbitmq', data: { queue: 'reminders', headers: { n: 1, last: true } } } },
  {
    key: 'c',
    steps: [{ type: 'wait_certain_period', delay_period: 1.5, delay_unit: 'hours' }, { type: 'job', metadata: [1] }],
    subscribers: ['alice', 7, { id: 3, language: 'fr' }],
    callback: { type: 'kafka', data: { topic: 'reminders', partition: 0 }, envelope: 'cloudevents' },
  },
  {
    key: 'f',
    delay: '1s',
    callback: {
      type: 'http', signing: 'none',
      data: { url: 'https://example.com/hook', headers: { 'X-Team': 'billing', Authorization: { secret: 'token', prefix: 'Bearer ' } } },
    },
  },
  // @ts-expect-error a queue is no receiver of HTTP
  { key: 'd', delay: '1s', callback: { type: 'http', data: { queue: 'reminders' } } },
  // @ts-expect-error there is no such type
  { key: 'e', delay: '1s', callback: { type: 'pigeon', data: { url: 'https://example.com/hook' } } },
]

// Results of a batch are told apart by what they have.
export async function batch(): Promise<string[]> {
  const { data } = await client.POST('/v1/jobs/batch', { body: submitted })
  return (data as Schemas['BatchResult'][]).map((result) =>
    'revision' in result ? result.revision : `${result.index}: ${result.detail}`)
}

// Where a job calls is known by the type of its callback.
export async function destination(key: string): Promise<string | undefined> {
  const { data, error, response } = await client.GET('/v1/jobs/{key}', { params: { path: { key } } })
  if (error !== undefined) throw new Error(error.errors?.[0]?.parameter ?? error.detail)
  await client.PATCH('/v1/jobs/{key}', {
    params: { path: { key }, header: { 'If-Match': response.headers.get('ETag') ?? '*' } },
    body: { deadline: null, callback: { data: { payload: { n: 2 } } }, retry: { max: null } },
    headers: { 'Content-Type': 'application/merge-patch+json' },
  })
  switch (data.callback.type) {
    case 'http': return data.callback.data.url
    case 'rabbitmq': return data.callback.data.queue ?? data.callback.data.exchange
    case 'kafka': return data.callback.data.topic
  }
}

// Settings of a tenant need not all be given.
export const settings: Schemas['TenantSettings'][] = [{}, { weight: 3 }, { paused: true, priority: null }]

// What receivers are sent.
type Delivery = webhooks['delivery']['post']['parameters']['header']
export const unique = (delivery: Delivery): string => delivery['Webhook-Id']
