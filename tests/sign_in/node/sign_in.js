// Signs in by each case of a file with kafkajs, writes a record and reads it back.
//
// Its argument is a JSON file with a list of cases. It prints a line for each: its number, a tab, and "signed in" or the
// error. The directory with node_modules is NODE_PATH.
"use strict";

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

function clientOf(one) {
  const ssl = { ca: [fs.readFileSync(one.trusted)] };
  if (one.certificate) {
    ssl.cert = fs.readFileSync(one.certificate);
    ssl.key = fs.readFileSync(one.key);
  }
  const sasl = {
    SSL: undefined,
    OAUTHBEARER: { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: one.token }) },
  };
  return new Kafka({
    brokers: [one.bootstrap],
    ssl,
    sasl:
      one.mechanism in sasl
        ? sasl[one.mechanism]
        : { mechanism: one.mechanism.toLowerCase(), username: one.user, password: one.password },
    retry: { retries: 0 },
    connectionTimeout: 30000,
    logLevel: logLevel.NOTHING,
  });
}

async function outcomeOf(one, number) {
  const kafka = clientOf(one);
  const producer = kafka.producer();
  const consumer = kafka.consumer({ groupId: `kafkajs-${number}`, retry: { retries: 5 } });
  try {
    await producer.connect();
    const [sent] = await producer.send({ topic: one.topic, messages: [{ value: `of kafkajs ${number}` }] });
    await consumer.connect();
    await consumer.subscribe({ topic: one.topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      consumer
        .run({
          eachMessage: async ({ message }) => message.offset === sent.baseOffset && resolve(),
        })
        .catch(reject);
    });
    return "signed in";
  } catch (error) {
    return `${error.name}: ${error.message}`.replaceAll("\n", " ");
  } finally {
    await Promise.allSettled([producer.disconnect(), consumer.disconnect()]);
  }
}

async function main() {
  const cases = JSON.parse(fs.readFileSync(process.argv[2]));
  const outcomes = await Promise.all(cases.map(outcomeOf));
  outcomes.forEach((outcome, number) => console.log(`${number}\t${outcome}`));
}

main();
