// A receiver of one delivery, which holds it against the npm package standardwebhooks: that verifies it, and nothing that differs
// from it. The secret is in the environment. Its URL is its first line of output; it ends with 0 if all is as it should be.
import { createServer } from 'node:http'
import { Webhook } from 'standardwebhooks'

const verifier = new Webhook(process.env.WEBHOOK_SECRET)
const stranger = new Webhook('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw')

function refuses(what, verify) {
  try {
    verify()
  } catch {
    return
  }
  throw new Error(`verified: ${what}`)
}

const server = createServer((request, response) => {
  const chunks = []
  request.on('data', (chunk) => chunks.push(chunk))
  request.on('end', () => {
    const body = Buffer.concat(chunks).toString()
    response.end()
    const payload = verifier.verify(body, request.headers)
    if (payload.text !== 'Grüße') throw new Error(`the payload is ${body}`)
    refuses('another body', () => verifier.verify(body.replace('Grüße', 'Grüsse'), request.headers))
    refuses('by another secret', () => stranger.verify(body, request.headers))
    refuses('another id', () => verifier.verify(body, { ...request.headers, 'webhook-id': request.headers['webhook-id'] + 'x' }))
    const now = Date.now
    Date.now = () => now() + 301_000
    refuses('an old delivery', () => verifier.verify(body, request.headers))
    server.close()
    server.closeAllConnections()
  })
})
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`))
