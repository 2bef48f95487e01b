/**
 * The analyst's side: datasets, budgets, rounds, jobs, results, keys, webhooks.
 *
 *     const client = new Client({ url, key });
 *     const job = await client.createJob({ dataset_id, algorithm, target_reports });
 *     await job.wait();
 *     const { model } = await client.getResult(job.id);
 *
 * There is a method for each operation of the service, named as its description names it. What
 * goes over the wire keeps the wire's names. Every method rejects with ApiProblem where the
 * service refuses, with Unreachable where it does not answer, and with InvalidSpec for an id
 * that is none. A write carries an idempotency key and keeps it over its retries.
 */

import { Calls, type CallOptions, type WriteOptions } from "./calls.js";
import { check } from "./checks.js";
import { JobTimeout } from "./errors.js";
import type * as wire from "./generated/types.gen.js";
import { Http, type HttpOptions } from "./http.js";

export type { CallOptions, WriteOptions } from "./calls.js";
export * from "./errors.js";
export type * from "./generated/types.gen.js";
export type { Fetch, HttpOptions } from "./http.js";

const MAX_ANSWER_BYTES = 256 << 20;
const TIMEOUT_SECONDS = 30;
const LONG_POLL_SECONDS = 30;
const TOLD_SECONDS = 1; // how often who follows a job is told
const PAUSE_MILLISECONDS = 100; // between two questions about one job, should the service not wait
const OVER: readonly wire.Job["state"][] = ["succeeded", "failed", "canceled", "expired"];

export interface ClientOptions extends HttpOptions {
  /** Where the service is, without `/v1`. */
  readonly url: string;
  /** What it may do is up to its scopes. An analyst's key never belongs into a web page. */
  readonly key: string;
}

export interface WaitOptions extends CallOptions {
  /** Longest wait; without end by default. */
  readonly timeoutSeconds?: number;
  /** Told the job about once a second, and when it is over. */
  readonly onProgress?: (job: wire.Job) => void;
}

/** A job as it was when it was asked about, and how to go on. */
export type PendingJob = wire.Job & {
  /** Wait until it is over: succeeded, failed, canceled or expired. Rejects with JobTimeout where it is not in time. */
  wait(options?: WaitOptions): Promise<PendingJob>;
};

/** The forms records come in beside JSON. */
export type RecordsType = "text/csv" | "application/x-npy" | "application/vnd.apache.arrow.stream";
/** The forms many reports come in beside JSON. */
export type ReportsType = "application/octet-stream" | "application/vnd.apache.arrow.stream";

/** Bytes of a form that is not JSON. */
export interface Content<T extends string> {
  readonly type: T;
  readonly bytes: string | Uint8Array<ArrayBuffer>;
}

/** One service, with one key. */
export class Client {
  readonly #calls: Calls;

  constructor(options: ClientOptions) {
    const http = new Http(options.url, options.key, { timeoutSeconds: TIMEOUT_SECONDS, ...options }, MAX_ANSWER_BYTES);
    this.#calls = new Calls(http);
  }

  // ---- datasets ----

  createDataset(body: wire.NewDataset, options?: WriteOptions): Promise<wire.Dataset> {
    return this.#calls.once<wire.CreateDatasetData, wire.CreateDatasetResponse>("/v1/datasets", { body }, options);
  }

  /** Every dataset the key sees, oldest first. */
  listDatasets(options?: CallOptions): AsyncGenerator<wire.Dataset, void, void> {
    return this.#calls.items<wire.ListDatasetsData, wire.Dataset>("/v1/datasets", {}, options);
  }

  getDataset(dataset_id: string, options?: CallOptions): Promise<wire.Dataset> {
    return this.#calls.get<wire.GetDatasetData, wire.GetDatasetResponse>("/v1/datasets/{dataset_id}", { path: { dataset_id } }, options);
  }

  /** Change what may change; what is left out stays. */
  updateDataset(dataset_id: string, body: wire.DatasetChange, options: CallOptions & { readonly ifMatch?: string } = {}): Promise<wire.Dataset> {
    const more = options.ifMatch === undefined ? {} : { headers: { "If-Match": options.ifMatch } };
    const given = { path: { dataset_id }, body };
    return this.#calls.send<wire.UpdateDatasetData, wire.UpdateDatasetResponse>("PATCH", "/v1/datasets/{dataset_id}", given, options, more);
  }

  /** Cancel its jobs, close its rounds, scrub its reports and records; the ledger stays readable. */
  deleteDataset(dataset_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.DeleteDatasetData, void>("DELETE", "/v1/datasets/{dataset_id}", { path: { dataset_id } }, options);
  }

  // ---- budget and ledger ----

  getBudget(dataset_id: string, options?: CallOptions): Promise<wire.Budget> {
    return this.#calls.get<wire.GetBudgetData, wire.GetBudgetResponse>("/v1/datasets/{dataset_id}/budget", { path: { dataset_id } }, options);
  }

  /** Allow so much more. */
  createGrant(dataset_id: string, body: wire.NewGrant, options?: WriteOptions): Promise<wire.LedgerEntry> {
    const given = { path: { dataset_id }, body };
    return this.#calls.once<wire.CreateGrantData, wire.CreateGrantResponse>("/v1/datasets/{dataset_id}/grants", given, options);
  }

  /** Every entry, in order. */
  listLedgerEntries(dataset_id: string, options?: CallOptions): AsyncGenerator<wire.LedgerEntry, void, void> {
    const given = { path: { dataset_id } };
    return this.#calls.items<wire.ListLedgerEntriesData, wire.LedgerEntry>("/v1/datasets/{dataset_id}/ledger", given, options);
  }

  // ---- records ----

  /** Append records to a central dataset: all of them, or none. */
  uploadRecords(dataset_id: string, records: wire.RecordRows | Content<RecordsType>, options?: WriteOptions): Promise<wire.RecordUpload> {
    const { body, more } = sent<wire.RecordRows>(records);
    const given = { path: { dataset_id }, body };
    return this.#calls.once<wire.UploadRecordsData, wire.UploadRecordsResponse>("/v1/datasets/{dataset_id}/records", given, options, more);
  }

  /** How many there are: private, so it needs the scope `records`. */
  countRecords(dataset_id: string, options?: CallOptions): Promise<wire.RecordCounts> {
    const given = { path: { dataset_id } };
    return this.#calls.get<wire.CountRecordsData, wire.CountRecordsResponse>("/v1/datasets/{dataset_id}/records", given, options);
  }

  /** Remove every record of a dataset; what was spent stays spent. */
  deleteRecords(dataset_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.DeleteRecordsData, void>("DELETE", "/v1/datasets/{dataset_id}/records", { path: { dataset_id } }, options);
  }

  // ---- rounds and reports ----

  /** Open a collection of one round, for later jobs; posts its cost first. */
  createRound(dataset_id: string, body: wire.NewRound, options?: WriteOptions): Promise<wire.Round> {
    const given = { path: { dataset_id }, body };
    return this.#calls.once<wire.CreateRoundData, wire.CreateRoundResponse>("/v1/datasets/{dataset_id}/rounds", given, options);
  }

  /** Every round of a dataset, oldest first. */
  listRounds(dataset_id: string, options?: CallOptions): AsyncGenerator<wire.Round, void, void> {
    return this.#calls.items<wire.ListRoundsData, wire.Round>("/v1/datasets/{dataset_id}/rounds", { path: { dataset_id } }, options);
  }

  getRound(round_id: string, options?: CallOptions): Promise<wire.Round> {
    return this.#calls.get<wire.GetRoundData, wire.GetRoundResponse>("/v1/rounds/{round_id}", { path: { round_id } }, options);
  }

  /** Take no more reports; closing again changes nothing. */
  closeRound(round_id: string, options?: WriteOptions): Promise<wire.Round> {
    return this.#calls.once<wire.CloseRoundData, wire.CloseRoundResponse>("/v1/rounds/{round_id}/close", { path: { round_id } }, options);
  }

  /** Hand in reports that were perturbed elsewhere; a person's own device uses `Device`. Sending one again changes nothing. */
  sendReports(round_id: string, reports: wire.Report | wire.ReportColumns | Content<ReportsType>, options?: CallOptions): Promise<wire.Receipt> {
    const { body, more } = sent<wire.Report | wire.ReportColumns>(reports);
    const given = { path: { round_id }, body };
    return this.#calls.send<wire.SendReportsData, wire.SendReportsResponse>("POST", "/v1/rounds/{round_id}/reports", given, options, more);
  }

  // ---- forecasts ----

  /** What an algorithm would cost, and how good it would be; spends and stores nothing. */
  createForecast(body: wire.NewForecast, options?: CallOptions): Promise<wire.AnyForecast> {
    return this.#calls.send<wire.CreateForecastData, wire.CreateForecastResponse>("POST", "/v1/forecasts", { body }, options);
  }

  // ---- jobs ----

  /** Ask for clusters. */
  async createJob(body: wire.NewJob, options?: WriteOptions): Promise<PendingJob> {
    return this.#pending(await this.#calls.once<wire.CreateJobData, wire.CreateJobResponse>("/v1/jobs", { body }, options));
  }

  /** Every job the key sees, oldest first; only of one dataset, where it is named. */
  listJobs(options: CallOptions & { readonly datasetId?: string } = {}): AsyncGenerator<wire.Job, void, void> {
    const query = options.datasetId === undefined ? {} : { dataset_id: options.datasetId };
    return this.#calls.items<wire.ListJobsData, wire.Job>("/v1/jobs", { query }, options);
  }

  /**
   * One job as it stands.
   *
   * @param options waitSeconds: answered when it is over, or after so long; the operator may allow less.
   */
  async getJob(job_id: string, options: CallOptions & { readonly waitSeconds?: number } = {}): Promise<PendingJob> {
    const wait = options.waitSeconds;
    const given = { path: { job_id }, ...(wait === undefined ? {} : { query: { wait } }) };
    const more = { extraSeconds: wait ?? 0 };
    return this.#pending(await this.#calls.get<wire.GetJobData, wire.GetJobResponse>("/v1/jobs/{job_id}", given, options, more));
  }

  /** Wait until a job is over; `job.wait()` by its id. */
  async waitForJob(job_id: string, options: WaitOptions = {}): Promise<PendingJob> {
    const { timeoutSeconds = Infinity, onProgress, ...call } = options;
    check(timeoutSeconds >= 0, "timeoutSeconds is 0 or more");
    const longest = onProgress === undefined ? LONG_POLL_SECONDS : TOLD_SECONDS;
    const deadline = performance.now() + 1000 * timeoutSeconds;
    for (;;) {
      const left = Math.max(0, (deadline - performance.now()) / 1000);
      const job = await this.getJob(job_id, { ...call, waitSeconds: Math.floor(Math.min(left, longest)) });
      onProgress?.(job);
      if (OVER.includes(job.state)) return job;
      if (left === 0) throw new JobTimeout(job, timeoutSeconds);
      await new Promise((resolve) => setTimeout(resolve, Math.min(1000 * left, PAUSE_MILLISECONDS)));
    }
  }

  /** What was posted stays, the rest of the reservation is released. */
  async cancelJob(job_id: string, options?: WriteOptions): Promise<PendingJob> {
    const given = { path: { job_id } };
    return this.#pending(await this.#calls.once<wire.CancelJobData, wire.CancelJobResponse>("/v1/jobs/{job_id}/cancel", given, options));
  }

  // ---- results ----

  /** What a job that succeeded released. */
  getResult(job_id: string, options?: CallOptions): Promise<wire.Result> {
    return this.#calls.get<wire.GetResultData, wire.GetResultResponse>("/v1/jobs/{job_id}/result", { path: { job_id } }, options);
  }

  /** The labels of a result's cells. */
  getLabels(job_id: string, options?: CallOptions): Promise<wire.Labels> {
    return this.#calls.get<wire.GetLabelsData, wire.Labels>("/v1/jobs/{job_id}/labels", { path: { job_id } }, options);
  }

  /** Labels of the reports behind a result, where its dataset keeps reports; they say little. */
  listReportLabels(job_id: string, options?: CallOptions): AsyncGenerator<wire.ReportLabel, void, void> {
    const given = { path: { job_id }, query: { of: "reports" } } as const;
    return this.#calls.items<wire.GetLabelsData, wire.ReportLabel>("/v1/jobs/{job_id}/labels", given, options);
  }

  /** The result as an SVG picture. */
  getPlot(job_id: string, options?: CallOptions): Promise<string> {
    const more = { accept: "image/svg+xml" };
    return this.#calls.get<wire.GetPlotData, string>("/v1/jobs/{job_id}/plot.svg", { path: { job_id } }, options, more);
  }

  /** The result as a PNG picture, 1200 pixels wide. */
  getPlotPng(job_id: string, options?: CallOptions): Promise<Uint8Array> {
    const more = { accept: "image/png" };
    return this.#calls.get<wire.GetPlotPngData, Uint8Array>("/v1/jobs/{job_id}/plot.png", { path: { job_id } }, options, more);
  }

  /** Label points with a job's model; the service stores none of them, but is shown them. */
  assignPoints(job_id: string, body: wire.Points, options?: CallOptions): Promise<wire.PointLabels> {
    const given = { path: { job_id }, body };
    return this.#calls.send<wire.AssignPointsData, wire.AssignPointsResponse>("POST", "/v1/jobs/{job_id}/assign", given, options);
  }

  // ---- keys ----

  /**
   * Make a key; its secret is in the answer, and nowhere else ever again.
   *
   * Where that one answer was lost, the key nobody can use is revoked, and another made.
   */
  async createKey(body: wire.NewKey, options: CallOptions = {}): Promise<wire.NewKeySecret> {
    for (;;) {
      const made = await this.#calls.once<wire.CreateKeyData, wire.CreateKeyResponse>("/v1/keys", { body }, options);
      if (made.secret !== null) return made;
      await this.revokeKey(made.id, options);
    }
  }

  /** Make a key in place of another, which works on for `overlap_seconds`. */
  async rotateKey(key_id: string, body: wire.KeyRotation, options: CallOptions = {}): Promise<wire.NewKeySecret> {
    let made = await this.#rotated(key_id, body, options);
    while (made.secret === null) made = await this.#rotated(made.id, { ...body, overlap_seconds: 0 }, options); // that answer was lost
    return made;
  }

  #rotated(key_id: string, body: wire.KeyRotation, options: CallOptions): Promise<wire.NewKeySecret> {
    return this.#calls.once<wire.RotateKeyData, wire.RotateKeyResponse>("/v1/keys/{key_id}/rotate", { path: { key_id }, body }, options);
  }

  /** Every key of the tenant, without secrets. */
  listKeys(options?: CallOptions): AsyncGenerator<wire.Key, void, void> {
    return this.#calls.items<wire.ListKeysData, wire.Key>("/v1/keys", {}, options);
  }

  /** End a key at once. */
  revokeKey(key_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.RevokeKeyData, void>("DELETE", "/v1/keys/{key_id}", { path: { key_id } }, options);
  }

  // ---- what surrounds them ----

  /** What the tenant may have at once, and has. */
  getLimits(options?: CallOptions): Promise<wire.Limits> {
    return this.#calls.get<wire.GetLimitsData, wire.GetLimitsResponse>("/v1/limits", {}, options);
  }

  /** Who did which act of administration, in order. */
  listAuditEvents(options: CallOptions & { readonly query?: AuditQuery } = {}): AsyncGenerator<wire.AuditEvent, void, void> {
    return this.#calls.items<wire.ListAuditEventsData, wire.AuditEvent>("/v1/audit", { query: options.query ?? {} }, options);
  }

  // ---- webhooks ----

  /** Have an address told what happens; the secret that signs it is in the answer, and nowhere else ever again. */
  async createWebhook(body: wire.NewWebhook, options: CallOptions = {}): Promise<wire.NewWebhookSecret> {
    for (;;) {
      const made = await this.#calls.once<wire.CreateWebhookData, wire.CreateWebhookResponse>("/v1/webhooks", { body }, options);
      if (made.secret !== null) return made;
      await this.deleteWebhook(made.id, options);
    }
  }

  listWebhooks(options?: CallOptions): AsyncGenerator<wire.Webhook, void, void> {
    return this.#calls.items<wire.ListWebhooksData, wire.Webhook>("/v1/webhooks", {}, options);
  }

  getWebhook(webhook_id: string, options?: CallOptions): Promise<wire.Webhook> {
    return this.#calls.get<wire.GetWebhookData, wire.GetWebhookResponse>("/v1/webhooks/{webhook_id}", { path: { webhook_id } }, options);
  }

  updateWebhook(webhook_id: string, body: wire.WebhookChange, options?: CallOptions): Promise<wire.Webhook> {
    const given = { path: { webhook_id }, body };
    return this.#calls.send<wire.UpdateWebhookData, wire.UpdateWebhookResponse>("PATCH", "/v1/webhooks/{webhook_id}", given, options);
  }

  deleteWebhook(webhook_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.DeleteWebhookData, void>("DELETE", "/v1/webhooks/{webhook_id}", { path: { webhook_id } }, options);
  }

  /** A new secret, in the answer alone; the old one signs beside it for a while. */
  async rotateWebhookSecret(webhook_id: string, body: wire.Rotation, options: CallOptions = {}): Promise<wire.NewWebhookSecret> {
    const [url, given] = ["/v1/webhooks/{webhook_id}/rotate", { path: { webhook_id }, body }] as const;
    for (;;) {
      const made = await this.#calls.once<wire.RotateWebhookSecretData, wire.RotateWebhookSecretResponse>(url, given, options);
      if (made.secret !== null) return made;
    }
  }

  /** Send it a test. */
  testWebhook(webhook_id: string, options?: WriteOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/test";
    return this.#calls.once<wire.TestWebhookData, wire.TestWebhookResponse>(url, { path: { webhook_id } }, options);
  }

  /** What was sent or is to be sent. */
  listWebhookDeliveries(
    webhook_id: string,
    options: CallOptions & { readonly state?: wire.Delivery["state"] } = {},
  ): AsyncGenerator<wire.Delivery, void, void> {
    const given = { path: { webhook_id }, ...(options.state === undefined ? {} : { query: { state: options.state } }) };
    return this.#calls.items<wire.ListWebhookDeliveriesData, wire.Delivery>("/v1/webhooks/{webhook_id}/deliveries", given, options);
  }

  getWebhookDelivery(webhook_id: string, delivery_id: string, options?: CallOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}";
    return this.#calls.get<wire.GetWebhookDeliveryData, wire.GetWebhookDeliveryResponse>(url, { path: { webhook_id, delivery_id } }, options);
  }

  /** Send a delivery again. */
  redeliverWebhook(webhook_id: string, delivery_id: string, options?: WriteOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver";
    return this.#calls.once<wire.RedeliverWebhookData, wire.RedeliverWebhookResponse>(url, { path: { webhook_id, delivery_id } }, options);
  }

  #pending(job: wire.Job): PendingJob {
    const wait = (options?: WaitOptions): Promise<PendingJob> => this.waitForJob(job.id, options);
    return Object.defineProperty({ ...job }, "wait", { value: wait }) as PendingJob; // not enumerable: a job is plain JSON
  }
}

/** Which acts; all of them by default. */
export type AuditQuery = Pick<NonNullable<wire.ListAuditEventsData["query"]>, "dataset_id" | "act" | "actor">;

/** JSON as it is; other bytes in its place. */
function sent<J>(given: J | Content<string>): { body: J; more: { content?: Content<string> } } {
  if (typeof given === "object" && given !== null && "bytes" in given) return { body: undefined as J, more: { content: given } };
  return { body: given as J, more: {} };
}
