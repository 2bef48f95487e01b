/**
 * The client for analysts: datasets, budgets, rounds, jobs, series, results, keys and webhooks.
 *
 *     const client = new Client({ url, key });
 *     const job = await client.createJob({ dataset_id, algorithm, target_reports });
 *     await job.wait();
 *     const { model } = await client.getResult(job.id);
 *
 * `Client` has a method for each operation of the OpenAPI document, with the operation's name. Objects keep the field names
 * of the HTTP API. Each method rejects with ApiProblem if the service returns an error, with Unreachable if the service does
 * not respond, and with InvalidSpec if an id is malformed. A call that creates an object uses one idempotency key for all
 * its attempts.
 */

import { now } from "./platform.js";
import { Calls, type CallOptions, type WriteOptions } from "./calls.js";
import { check } from "./checks.js";
import { JobTimeout } from "./errors.js";
import type * as wire from "./generated/types.gen.js";
import { Http, type HttpOptions } from "./http.js";

export type { CallOptions, WriteOptions } from "./calls.js";
export * from "./errors.js";
export type * from "./generated/types.gen.js";
export type { Fetch, HttpOptions } from "./http.js";

const MAX_RESPONSE_BYTES = 256 << 20;
const TIMEOUT_SECONDS = 30;
const LONG_POLL_SECONDS = 30;
const PROGRESS_SECONDS = 1; // interval between calls of onProgress
const PAUSE_MILLISECONDS = 100; // minimum pause between two polls of a job
const FINAL_STATES: readonly wire.Job["state"][] = ["succeeded", "failed", "canceled", "expired"];

/** Options of a client. */
export interface ClientOptions extends HttpOptions {
  /** URL of the service without `/v1`. */
  readonly url: string;
  /** API key with the scopes that the calls need. Never put an analyst's key into a web page. */
  readonly key: string;
}

/** Options for waiting until a job ends. */
export interface WaitOptions extends CallOptions {
  /** Timeout in seconds; unlimited by default. */
  readonly timeoutSeconds?: number;
  /** Function that receives the job about once a second and when it ends. */
  readonly onProgress?: (job: wire.Job) => void;
}

/** The state of a job at the time of the request, with a method that waits for its end. */
export type PendingJob = wire.Job & {
  /**
   * Wait until the job has succeeded, failed, expired or been canceled.
   *
   * @throws JobTimeout The job has not ended within `timeoutSeconds`.
   */
  wait(options?: WaitOptions): Promise<PendingJob>;
};

/** Media types for uploading records, besides JSON. */
export type RecordsType = "text/csv" | "application/x-npy" | "application/vnd.apache.arrow.stream";
/** Media types for sending reports in bulk, besides JSON. */
export type ReportsType = "application/octet-stream" | "application/vnd.apache.arrow.stream";

/** A request body of another media type than JSON. */
export interface Content<T extends string> {
  readonly type: T;
  readonly bytes: string | Uint8Array<ArrayBuffer>;
}

/** A client of one service with one key. */
export class Client {
  readonly #calls: Calls;

  constructor(options: ClientOptions) {
    const http = new Http(options.url, options.key, { timeoutSeconds: TIMEOUT_SECONDS, ...options }, MAX_RESPONSE_BYTES);
    this.#calls = new Calls(http);
  }

  // ---- datasets ----

  /** Create a dataset with its first grant. */
  createDataset(body: wire.NewDataset, options?: WriteOptions): Promise<wire.CreatedDataset> {
    return this.#calls.sendOnce<wire.CreateDatasetData, wire.CreateDatasetResponse>("/v1/datasets", { body }, options);
  }

  /** List the datasets that the key can access, newest first. */
  listDatasets(options: CallOptions & { readonly query?: Filters<wire.ListDatasetsData> } = {}): AsyncGenerator<wire.Dataset, void, void> {
    return this.#calls.items<wire.ListDatasetsData, wire.Dataset>("/v1/datasets", { query: options.query ?? {} }, options);
  }

  /** Return a dataset. */
  getDataset(dataset_id: string, options?: CallOptions): Promise<wire.Dataset> {
    return this.#calls.get<wire.GetDatasetData, wire.GetDatasetResponse>("/v1/datasets/{dataset_id}", { path: { dataset_id } }, options);
  }

  /** Change the given fields of a dataset. With `ifMatch`, change it only if its ETag still matches. */
  updateDataset(dataset_id: string, body: wire.DatasetChange, options: CallOptions & { readonly ifMatch?: string } = {}): Promise<wire.Dataset> {
    const more = options.ifMatch === undefined ? {} : { headers: { "If-Match": options.ifMatch } };
    const parameters = { path: { dataset_id }, body };
    return this.#calls.send<wire.UpdateDatasetData, wire.UpdateDatasetResponse>("PATCH", "/v1/datasets/{dataset_id}", parameters, options, more);
  }

  /** Delete a dataset: cancel its jobs, close its rounds, and delete its reports and records. The ledger remains readable. */
  deleteDataset(dataset_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.DeleteDatasetData, void>("DELETE", "/v1/datasets/{dataset_id}", { path: { dataset_id } }, options);
  }

  // ---- budget and ledger ----

  /** Return the privacy budget of a dataset. */
  getBudget(dataset_id: string, options?: CallOptions): Promise<wire.Budget> {
    return this.#calls.get<wire.GetBudgetData, wire.GetBudgetResponse>("/v1/datasets/{dataset_id}/budget", { path: { dataset_id } }, options);
  }

  /** Return what all datasets over the same people spent. The source `-` has the datasets without a label. */
  getSource(source: string, options: CallOptions & { readonly query?: wire.GetSourceData["query"] } = {}): Promise<wire.Source> {
    const parameters = { path: { source }, query: options.query ?? {} };
    return this.#calls.get<wire.GetSourceData, wire.GetSourceResponse>("/v1/sources/{source}", parameters, options);
  }

  /** Add privacy budget to a dataset. */
  createGrant(dataset_id: string, body: wire.NewGrant, options?: WriteOptions): Promise<wire.LedgerEntry> {
    const parameters = { path: { dataset_id }, body };
    return this.#calls.sendOnce<wire.CreateGrantData, wire.CreateGrantResponse>("/v1/datasets/{dataset_id}/grants", parameters, options);
  }

  /** List the ledger entries of a dataset, newest first. */
  listLedgerEntries(dataset_id: string, options: CallOptions & { readonly query?: Filters<wire.ListLedgerEntriesData> } = {}): AsyncGenerator<wire.LedgerEntry, void, void> {
    const parameters = { path: { dataset_id }, query: options.query ?? {} };
    return this.#calls.items<wire.ListLedgerEntriesData, wire.LedgerEntry>("/v1/datasets/{dataset_id}/ledger", parameters, options);
  }

  // ---- records ----

  /** Add records to a central dataset. The service stores either all of them or none. */
  uploadRecords(dataset_id: string, records: wire.RecordRows | Content<RecordsType>, options: WriteOptions & { readonly allowDuplicates?: boolean; readonly acceptClipping?: boolean } = {}): Promise<wire.RecordUpload> {
    const { body, more } = splitContent<wire.RecordRows>(records);
    const query = {
      ...(options.allowDuplicates === undefined ? {} : { allow_duplicates: options.allowDuplicates }),
      ...(options.acceptClipping === undefined ? {} : { accept_clipping: options.acceptClipping }),
    };
    const parameters = { path: { dataset_id }, query, body };
    return this.#calls.sendOnce<wire.UploadRecordsData, wire.UploadRecordsResponse>("/v1/datasets/{dataset_id}/records", parameters, options, more);
  }

  /** Return the number of records. It is private and requires the scope `records`. */
  countRecords(dataset_id: string, options?: CallOptions): Promise<wire.RecordCounts> {
    const parameters = { path: { dataset_id } };
    return this.#calls.get<wire.CountRecordsData, wire.CountRecordsResponse>("/v1/datasets/{dataset_id}/records", parameters, options);
  }

  /**
   * Delete the records of one user, `{ user: "id" }`, or of all, `{ all: true }`. Released results and spent budget stay.
   * The outcome is the same whether or not the user had records.
   */
  deleteRecords(dataset_id: string, which: { readonly user: string } | { readonly all: true }, options?: CallOptions): Promise<void> {
    const query = "user" in which ? { user: which.user } : { all: true };
    return this.#calls.send<wire.DeleteRecordsData, void>("DELETE", "/v1/datasets/{dataset_id}/records", { path: { dataset_id }, query }, options);
  }

  // ---- rounds and reports ----

  /** Charge the cost of a standalone round and open it, for later jobs. */
  createRound(dataset_id: string, body: wire.NewRound, options?: WriteOptions): Promise<wire.Round> {
    const parameters = { path: { dataset_id }, body };
    return this.#calls.sendOnce<wire.CreateRoundData, wire.CreateRoundResponse>("/v1/datasets/{dataset_id}/rounds", parameters, options);
  }

  /** List the rounds of a dataset, newest first. */
  listRounds(dataset_id: string, options: CallOptions & { readonly query?: Filters<wire.ListRoundsData> } = {}): AsyncGenerator<wire.Round, void, void> {
    return this.#calls.items<wire.ListRoundsData, wire.Round>("/v1/datasets/{dataset_id}/rounds", { path: { dataset_id }, query: options.query ?? {} }, options);
  }

  /** Return a round. */
  getRound(round_id: string, options?: CallOptions): Promise<wire.Round> {
    return this.#calls.get<wire.GetRoundData, wire.GetRoundResponse>("/v1/rounds/{round_id}", { path: { round_id } }, options);
  }

  /** Close a round, so that it accepts no more reports. A round without reports closes only with `allowEmpty`. */
  closeRound(round_id: string, options: WriteOptions & { readonly allowEmpty?: boolean } = {}): Promise<wire.Round> {
    const parameters = { path: { round_id }, query: { allow_empty: options.allowEmpty ?? false } };
    return this.#calls.sendOnce<wire.CloseRoundData, wire.CloseRoundResponse>("/v1/rounds/{round_id}/close", parameters, options);
  }

  /** Send reports that are already perturbed. Sending a report again has no effect. Apps on a device use `Device` instead. */
  sendReports(round_id: string, reports: wire.Report | wire.ReportColumns | Content<ReportsType>, options?: CallOptions): Promise<wire.Receipt> {
    const { body, more } = splitContent<wire.Report | wire.ReportColumns>(reports);
    const parameters = { path: { round_id }, body };
    return this.#calls.send<wire.SendReportsData, wire.SendReportsResponse>("POST", "/v1/rounds/{round_id}/reports", parameters, options, more);
  }

  // ---- forecasts ----

  /** Predict the cost and quality of a job. A forecast spends and stores nothing. */
  createForecast(body: wire.NewForecast, options?: CallOptions): Promise<wire.AnyForecast> {
    return this.#calls.send<wire.CreateForecastData, wire.CreateForecastResponse>("POST", "/v1/forecasts", { body }, options);
  }

  /** Predict the errors of a profile of a job's clusters. A forecast spends and stores nothing. */
  createProfileForecast(body: wire.NewProfileForecast, options?: CallOptions): Promise<wire.ProfileForecast> {
    return this.#calls.send<wire.CreateProfileForecastData, wire.CreateProfileForecastResponse>("POST", "/v1/forecasts/profiles", { body }, options);
  }

  // ---- jobs ----

  /** Submit a job. */
  async createJob(body: wire.NewJob, options?: WriteOptions): Promise<PendingJob> {
    return this.#pending(await this.#calls.sendOnce<wire.CreateJobData, wire.CreateJobResponse>("/v1/jobs", { body }, options));
  }

  /** List the jobs that the key can access, newest first. With `datasetId`, list the jobs of this dataset only. */
  listJobs(options: CallOptions & { readonly datasetId?: string; readonly query?: Filters<wire.ListJobsData> } = {}): AsyncGenerator<wire.Job, void, void> {
    const query = { ...options.query, ...(options.datasetId === undefined ? {} : { dataset_id: options.datasetId }) };
    return this.#calls.items<wire.ListJobsData, wire.Job>("/v1/jobs", { query }, options);
  }

  /**
   * Return a job.
   *
   * @param options With `waitSeconds`, the service responds when the job ends, at the latest after this time. The operator
   *   can set a shorter limit.
   */
  async getJob(job_id: string, options: CallOptions & { readonly waitSeconds?: number } = {}): Promise<PendingJob> {
    const wait = options.waitSeconds;
    const parameters = { path: { job_id }, ...(wait === undefined ? {} : { query: { wait } }) };
    const more = { extraSeconds: wait ?? 0 };
    return this.#pending(await this.#calls.get<wire.GetJobData, wire.GetJobResponse>("/v1/jobs/{job_id}", parameters, options, more));
  }

  /**
   * Wait until a job has ended. Same as `job.wait()`, but with an id.
   *
   * @throws JobTimeout The job has not ended within `timeoutSeconds`.
   */
  async waitForJob(job_id: string, options: WaitOptions = {}): Promise<PendingJob> {
    const { timeoutSeconds = Infinity, onProgress, ...call } = options;
    check(timeoutSeconds >= 0, "timeoutSeconds must be 0 or more");
    const longest = onProgress === undefined ? LONG_POLL_SECONDS : PROGRESS_SECONDS;
    const deadline = now() + 1000 * timeoutSeconds;
    for (;;) {
      const left = Math.max(0, (deadline - now()) / 1000);
      const job = await this.getJob(job_id, { ...call, waitSeconds: Math.floor(Math.min(left, longest)) });
      onProgress?.(job);
      if (FINAL_STATES.includes(job.state)) return job;
      if (left === 0) throw new JobTimeout(job, timeoutSeconds);
      await new Promise((resolve) => setTimeout(resolve, Math.min(1000 * left, PAUSE_MILLISECONDS)));
    }
  }

  /** Cancel a job. Spent budget is not refunded; the rest of the reservation is released. */
  async cancelJob(job_id: string, options?: WriteOptions): Promise<PendingJob> {
    const parameters = { path: { job_id } };
    return this.#pending(await this.#calls.sendOnce<wire.CancelJobData, wire.CancelJobResponse>("/v1/jobs/{job_id}/cancel", parameters, options));
  }

  // ---- series ----

  /** Create a series: one job in each window, with a budget for each cycle. */
  createSeries(body: wire.NewSeries, options?: WriteOptions): Promise<wire.Series> {
    return this.#calls.sendOnce<wire.CreateSeriesData, wire.CreateSeriesResponse>("/v1/series", { body }, options);
  }

  /** Forecast what a series costs one person, and which changes it finds. It costs nothing. */
  createSeriesForecast(body: wire.NewSeriesForecast, options?: CallOptions): Promise<wire.SeriesForecast> {
    return this.#calls.send<wire.CreateSeriesForecastData, wire.CreateSeriesForecastResponse>("POST", "/v1/forecasts/series", { body }, options);
  }

  /** List the series that the key can access, newest first. */
  listSeries(options: CallOptions & { readonly query?: Filters<wire.ListSeriesData> } = {}): AsyncGenerator<wire.Series, void, void> {
    return this.#calls.items<wire.ListSeriesData, wire.Series>("/v1/series", { query: options.query ?? {} }, options);
  }

  /** Return a series with its state and its cost. */
  getSeries(series_id: string, options?: CallOptions): Promise<wire.Series> {
    return this.#calls.get<wire.GetSeriesData, wire.GetSeriesResponse>("/v1/series/{series_id}", { path: { series_id } }, options);
  }

  /** Rename, pause, continue or end a series. An open window is completed. */
  updateSeries(series_id: string, body: wire.SeriesChange, options?: CallOptions): Promise<wire.Series> {
    const parameters = { path: { series_id }, body };
    return this.#calls.send<wire.UpdateSeriesData, wire.UpdateSeriesResponse>("PATCH", "/v1/series/{series_id}", parameters, options);
  }

  /** Return the map of a window, the last one by default. Its clusters have ids that persist over windows. */
  getSeriesMap(series_id: string, options: CallOptions & { readonly query?: wire.GetSeriesMapData["query"] } = {}): Promise<wire.SeriesMap> {
    const parameters = { path: { series_id }, query: options.query ?? {} };
    return this.#calls.get<wire.GetSeriesMapData, wire.GetSeriesMapResponse>("/v1/series/{series_id}/map", parameters, options);
  }

  /** List all clusters that a series has had, newest first. */
  listSeriesClusters(series_id: string, options: CallOptions & { readonly query?: Filters<wire.ListSeriesClustersData> } = {}): AsyncGenerator<wire.SeriesCluster, void, void> {
    const parameters = { path: { series_id }, query: options.query ?? {} };
    return this.#calls.items<wire.ListSeriesClustersData, wire.SeriesCluster>("/v1/series/{series_id}/clusters", parameters, options);
  }

  /** Return one cluster of a series. */
  getSeriesCluster(series_id: string, cluster_id: string, options?: CallOptions): Promise<wire.SeriesCluster> {
    const parameters = { path: { series_id, cluster_id } };
    return this.#calls.get<wire.GetSeriesClusterData, wire.GetSeriesClusterResponse>("/v1/series/{series_id}/clusters/{cluster_id}", parameters, options);
  }

  /** Name a cluster of a series. The name stays with its id; an empty one removes it. */
  updateSeriesCluster(series_id: string, cluster_id: string, body: wire.ClusterChange, options?: CallOptions): Promise<wire.SeriesCluster> {
    const parameters = { path: { series_id, cluster_id }, body };
    return this.#calls.send<wire.UpdateSeriesClusterData, wire.UpdateSeriesClusterResponse>("PATCH", "/v1/series/{series_id}/clusters/{cluster_id}", parameters, options);
  }

  /** List the changes of a series that raised an alarm, newest first. */
  listSeriesEvents(series_id: string, options: CallOptions & { readonly query?: Filters<wire.ListSeriesEventsData> } = {}): AsyncGenerator<wire.SeriesEvent, void, void> {
    const parameters = { path: { series_id }, query: options.query ?? {} };
    return this.#calls.items<wire.ListSeriesEventsData, wire.SeriesEvent>("/v1/series/{series_id}/events", parameters, options);
  }

  /** Change terms of a series from its next cycle on. Absent members stay unchanged. */
  createRevision(series_id: string, body: wire.NewRevision, options?: WriteOptions): Promise<wire.SeriesRevision> {
    const parameters = { path: { series_id }, body };
    return this.#calls.sendOnce<wire.CreateRevisionData, wire.CreateRevisionResponse>("/v1/series/{series_id}/revisions", parameters, options);
  }

  /** List the terms that a series has had, and those that begin later, newest first. */
  listSeriesRevisions(series_id: string, options: CallOptions & { readonly query?: Filters<wire.ListSeriesRevisionsData> } = {}): AsyncGenerator<wire.SeriesRevision, void, void> {
    const parameters = { path: { series_id }, query: options.query ?? {} };
    return this.#calls.items<wire.ListSeriesRevisionsData, wire.SeriesRevision>("/v1/series/{series_id}/revisions", parameters, options);
  }

  /** List the windows of a series up to the next one, newest first. */
  listSeriesWindows(series_id: string, options: CallOptions & { readonly query?: Filters<wire.ListSeriesWindowsData> } = {}): AsyncGenerator<wire.Window, void, void> {
    const parameters = { path: { series_id }, query: options.query ?? {} };
    return this.#calls.items<wire.ListSeriesWindowsData, wire.Window>("/v1/series/{series_id}/windows", parameters, options);
  }

  // ---- results ----

  /** Return the result of a succeeded job. */
  getResult(job_id: string, options?: CallOptions): Promise<wire.Result> {
    return this.#calls.get<wire.GetResultData, wire.GetResultResponse>("/v1/jobs/{job_id}/result", { path: { job_id } }, options);
  }

  /** Name the clusters of a result: a name for each cluster, in their order. An empty list removes all names. Names cost nothing. */
  updateResult(job_id: string, body: wire.ResultChange, options?: CallOptions): Promise<wire.Result> {
    const parameters = { path: { job_id }, body };
    return this.#calls.send<wire.UpdateResultData, wire.UpdateResultResponse>("PATCH", "/v1/jobs/{job_id}/result", parameters, options);
  }

  /** Return the cluster labels of the map cells of a result. */
  getLabels(job_id: string, options?: CallOptions): Promise<wire.Labels> {
    return this.#calls.get<wire.GetLabelsData, wire.Labels>("/v1/jobs/{job_id}/labels", { path: { job_id } }, options);
  }

  /** List cluster labels of the reports of a result, if its dataset keeps reports. A label of one report is uncertain. */
  listReportLabels(job_id: string, options?: CallOptions): AsyncGenerator<wire.ReportLabel, void, void> {
    const parameters = { path: { job_id }, query: { of: "reports" } } as const;
    return this.#calls.items<wire.GetLabelsData, wire.ReportLabel>("/v1/jobs/{job_id}/labels", parameters, options);
  }

  /** Return a plot of the result as SVG text. */
  getPlot(job_id: string, options?: CallOptions): Promise<string> {
    const more = { accept: "image/svg+xml" };
    return this.#calls.get<wire.GetPlotData, string>("/v1/jobs/{job_id}/plot.svg", { path: { job_id } }, options, more);
  }

  /** Return a plot of the result as a PNG image, 1200 pixels wide. */
  getPlotPng(job_id: string, options?: CallOptions): Promise<Uint8Array> {
    const more = { accept: "image/png" };
    return this.#calls.get<wire.GetPlotPngData, Uint8Array>("/v1/jobs/{job_id}/plot.png", { path: { job_id } }, options, more);
  }

  /** Assign clusters to points or records with the model of a job. The service receives them but does not store them. */
  assignPoints(job_id: string, body: wire.Points, options?: CallOptions): Promise<wire.PointLabels> {
    const parameters = { path: { job_id }, body };
    return this.#calls.send<wire.AssignPointsData, wire.AssignPointsResponse>("POST", "/v1/jobs/{job_id}/assign", parameters, options);
  }

  // ---- keys ----

  /**
   * Create a key. Only this response contains its secret.
   *
   * If the response is lost, the method revokes the key without a known secret and creates another one.
   */
  async createKey(body: wire.NewKey, options: CallOptions = {}): Promise<wire.NewKeySecret> {
    for (;;) {
      const created = await this.#calls.sendOnce<wire.CreateKeyData, wire.CreateKeyResponse>("/v1/keys", { body }, options);
      if (created.secret !== null) return created;
      await this.revokeKey(created.id, options);
    }
  }

  /** Replace a key by a new one. The old key stays valid for `overlap_seconds`. */
  async rotateKey(key_id: string, body: wire.KeyRotation, options: CallOptions = {}): Promise<wire.NewKeySecret> {
    let created = await this.#rotateOnce(key_id, body, options);
    while (created.secret === null) { // the response with the secret was lost
      created = await this.#rotateOnce(created.id, { ...body, overlap_seconds: 0 }, options);
    }
    return created;
  }

  #rotateOnce(key_id: string, body: wire.KeyRotation, options: CallOptions): Promise<wire.NewKeySecret> {
    return this.#calls.sendOnce<wire.RotateKeyData, wire.RotateKeyResponse>("/v1/keys/{key_id}/rotate", { path: { key_id }, body }, options);
  }

  /** List all keys of the tenant, without secrets. */
  listKeys(options?: CallOptions): AsyncGenerator<wire.Key, void, void> {
    return this.#calls.items<wire.ListKeysData, wire.Key>("/v1/keys", {}, options);
  }

  /** Revoke a key immediately. */
  revokeKey(key_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.RevokeKeyData, void>("DELETE", "/v1/keys/{key_id}", { path: { key_id } }, options);
  }

  // ---- limits and audit trail ----

  /** Return the limits of the tenant and their current use. */
  getLimits(options?: CallOptions): Promise<wire.Limits> {
    return this.#calls.get<wire.GetLimitsData, wire.GetLimitsResponse>("/v1/limits", {}, options);
  }

  /** List the events of the audit trail, newest first. */
  listAuditEvents(options: CallOptions & { readonly query?: Filters<wire.ListAuditEventsData> } = {}): AsyncGenerator<wire.AuditEvent, void, void> {
    return this.#calls.items<wire.ListAuditEventsData, wire.AuditEvent>("/v1/audit", { query: options.query ?? {} }, options);
  }

  // ---- webhooks ----

  /** Create a webhook. Only this response contains the secret that signs its deliveries. */
  async createWebhook(body: wire.NewWebhook, options: CallOptions = {}): Promise<wire.NewWebhookSecret> {
    for (;;) {
      const created = await this.#calls.sendOnce<wire.CreateWebhookData, wire.CreateWebhookResponse>("/v1/webhooks", { body }, options);
      if (created.secret !== null) return created;
      await this.deleteWebhook(created.id, options);
    }
  }

  /** List all webhooks of the tenant. */
  listWebhooks(options?: CallOptions): AsyncGenerator<wire.Webhook, void, void> {
    return this.#calls.items<wire.ListWebhooksData, wire.Webhook>("/v1/webhooks", {}, options);
  }

  /** Return a webhook. */
  getWebhook(webhook_id: string, options?: CallOptions): Promise<wire.Webhook> {
    return this.#calls.get<wire.GetWebhookData, wire.GetWebhookResponse>("/v1/webhooks/{webhook_id}", { path: { webhook_id } }, options);
  }

  /** Change the given fields of a webhook. */
  updateWebhook(webhook_id: string, body: wire.WebhookChange, options?: CallOptions): Promise<wire.Webhook> {
    const parameters = { path: { webhook_id }, body };
    return this.#calls.send<wire.UpdateWebhookData, wire.UpdateWebhookResponse>("PATCH", "/v1/webhooks/{webhook_id}", parameters, options);
  }

  /** Delete a webhook. */
  deleteWebhook(webhook_id: string, options?: CallOptions): Promise<void> {
    return this.#calls.send<wire.DeleteWebhookData, void>("DELETE", "/v1/webhooks/{webhook_id}", { path: { webhook_id } }, options);
  }

  /** Create a new signing secret. Only this response contains it. The old secret also signs deliveries during the overlap. */
  async rotateWebhookSecret(webhook_id: string, body: wire.Rotation, options: CallOptions = {}): Promise<wire.NewWebhookSecret> {
    const [url, parameters] = ["/v1/webhooks/{webhook_id}/rotate", { path: { webhook_id }, body }] as const;
    for (;;) {
      const created = await this.#calls.sendOnce<wire.RotateWebhookSecretData, wire.RotateWebhookSecretResponse>(url, parameters, options);
      if (created.secret !== null) return created;
    }
  }

  /** Send a test event to a webhook. */
  testWebhook(webhook_id: string, options?: WriteOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/test";
    return this.#calls.sendOnce<wire.TestWebhookData, wire.TestWebhookResponse>(url, { path: { webhook_id } }, options);
  }

  /** List the deliveries of a webhook, optionally of one state. */
  listWebhookDeliveries(
    webhook_id: string,
    options: CallOptions & { readonly state?: wire.Delivery["state"] } = {},
  ): AsyncGenerator<wire.Delivery, void, void> {
    const parameters = { path: { webhook_id }, ...(options.state === undefined ? {} : { query: { state: options.state } }) };
    return this.#calls.items<wire.ListWebhookDeliveriesData, wire.Delivery>("/v1/webhooks/{webhook_id}/deliveries", parameters, options);
  }

  /** Return a delivery. */
  getWebhookDelivery(webhook_id: string, delivery_id: string, options?: CallOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}";
    return this.#calls.get<wire.GetWebhookDeliveryData, wire.GetWebhookDeliveryResponse>(url, { path: { webhook_id, delivery_id } }, options);
  }

  /** Repeat a delivery. */
  redeliverWebhook(webhook_id: string, delivery_id: string, options?: WriteOptions): Promise<wire.Delivery> {
    const url = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver";
    return this.#calls.sendOnce<wire.RedeliverWebhookData, wire.RedeliverWebhookResponse>(url, { path: { webhook_id, delivery_id } }, options);
  }

  #pending(job: wire.Job): PendingJob {
    const wait = (options?: WaitOptions): Promise<PendingJob> => this.waitForJob(job.id, options);
    return Object.defineProperty({ ...job }, "wait", { value: wait }) as PendingJob; // not enumerable, so that the job serialises as plain JSON
  }
}

/** Filters and order of a list. Empty by default, which selects all items, newest first. */
export type Filters<D extends { readonly query?: unknown }> = Omit<NonNullable<D["query"]>, "cursor" | "limit">;

/** Separate a JSON body from content of another media type. */
function splitContent<J>(given: J | Content<string>): { body: J; more: { content?: Content<string> } } {
  if (typeof given === "object" && given !== null && "bytes" in given) return { body: undefined as J, more: { content: given } };
  return { body: given as J, more: {} };
}
