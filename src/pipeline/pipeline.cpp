#include "pipeline/pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <new>

#include "backend/local_stream.hpp"
#include "base/checked.hpp"
#include "pipeline/own_messages.hpp"
#include "plan/buffers.hpp"

namespace muonrt {

namespace {

enum : int32_t { kScanSpan, kVoteSpan, kAdamWSpan, kConfirmSpan };

// The device copies the initial results of a step from these objects.
constexpr Findings kNoFindings{};
const Vote kReject = rejecting_vote_sum();
constexpr int64_t kOne = 1;
// After this many launches, the pipeline waits for the caller's stream before it enqueues more. A
// GPU queues about a thousand launches, and then blocks the next one without a timeout.
constexpr int64_t kLaunchesAhead = 512;

int64_t aligned(int64_t bytes) { return round_up(bytes, kMemoryAlignment); }

}  // namespace

Pipeline::Pipeline(PipelineContext context, int rank, std::vector<RankChunk> chunks,
                   PipelineConfig config)
    : context_(context), rank_(rank), config_(std::move(config)), rank_chunks_(std::move(chunks)) {
  Device& device = *context_.device;
  const PlanOptions& options = context_.plan->problem().options;
  const auto chunk_count = static_cast<int32_t>(context_.plan->chunks().size());
  order_ = schedule(chunk_count, options.window, options.commit);
  if (options.commit == CommitMode::kAtomic) {
    scanned_ = unpacked();
    const std::vector<int32_t>& clip_only = config_.clipping.clip_only_params;
    scanned_.insert(scanned_.end(), clip_only.begin(), clip_only.end());
  } else {
    scanned_ = config_.held_params;
  }
  compute_ = device.create_stream(StreamKind::kCompute);
  exchange_ = device.create_stream(context_.comm->stream_kind());
  callbacks_done_ = device.create_event();
  vote_ready_ = device.create_event();
  vote_received_ = device.create_event();
  finished_ = device.create_event();
  context_.compute = compute_.get();
  context_.exchange = exchange_.get();
  spans_ = {{"scan", -1, SpanKind::kLocal},
            {"vote", -1, SpanKind::kVote},
            {"adamw", -1, SpanKind::kLocal},
            {"confirm", -1, SpanKind::kVote}};
  times_ = SpanTimes(device, spans_.size() + 1);  // the last entry is for clock_offset()
  context_.comm->prepare_reduction(sizeof(Vote));
  readback_buffer_ = Buffer::shared(device, sizeof(StepReadback));
  readback_ = new (readback_buffer_.data()) StepReadback{kReject, kReject, kNoFindings, 0, 0};
  if (config_.health) health_ = std::make_unique<Health>(context_, rank_, rank_chunks_);
  config_.chunks.health = health_.get();
  config_.chunks.failure = &callback_failure_;
  make_chunks();
  clipping_ = std::make_unique<Clipping>(context_, std::move(config_.clipping));
}

// Returns the parameters whose gradients this rank does not pack completely: AdamW parameters, and
// replicas that are not gathered. Only the scan reads these gradients before the vote.
std::vector<int32_t> Pipeline::unpacked() const {
  std::map<int32_t, int64_t> packed;  // number of packed elements of each parameter
  for (const RankChunk& chunk : rank_chunks_) {
    for (const ShardBlock& p : chunk.gather_blocks) packed[p.param] += p.rows * p.cols;
  }
  std::vector<int32_t> out;
  for (const int32_t param : config_.held_params) {
    const ParamSpec& spec = context_.plan->problem().params[static_cast<size_t>(param)];
    if (packed[param] < grad_layout(spec).local_numel(rank_)) out.push_back(param);
  }
  return out;
}

// The streams must be destroyed before the memory that their tasks use.
Pipeline::~Pipeline() {
  compute_.reset();
  exchange_.reset();
}

void Pipeline::make_chunks() {
  const PlanOptions& options = context_.plan->problem().options;
  const bool atomic = options.commit == CommitMode::kAtomic;
  const auto window = static_cast<size_t>(options.window);
  RankBuffers sizes(options);
  int64_t scratch = 0, total = 6 * kMemoryAlignment;
  for (const RankChunk& s : rank_chunks_) {
    sizes.add(s.index, bytes_of(s, rank_));
    scratch = std::max(scratch, Chunk::scratch_bytes(context_, config_.chunks, s));
    if (atomic) total += aligned(s.return_receive_bytes) + aligned(s.sum_bytes);
    owned_ += static_cast<int64_t>(s.owned.size());
  }
  total += aligned(scratch);
  for (const ChunkBytes& buffers : sizes.in_flight())
    for (const int64_t bytes : buffers) total += aligned(bytes);
  workspace_ = Buffer(*context_.device, total);

  char* at = workspace_.as<char>();
  const auto take = [&at](int64_t bytes) {
    char* begin = at;
    at += aligned(bytes);
    return static_cast<void*>(begin);
  };
  context_.results.findings = static_cast<Findings*>(take(kMemoryAlignment));
  context_.results.vote_sum = static_cast<Vote*>(take(kMemoryAlignment));
  own_vote_ = static_cast<Vote*>(take(kMemoryAlignment));
  confirm_vote_ = static_cast<Vote*>(take(kMemoryAlignment));
  confirm_sum_ = static_cast<Vote*>(take(kMemoryAlignment));
  transient_ = at;
  scratch_ = take(scratch);
  std::vector<void*> return_receives;
  for (const ChunkBytes& bytes : sizes.in_flight()) {
    MessageBuffers buffers;
    buffers.gather_send = take(bytes[kGatherSend]);
    buffers.gather_receive = take(bytes[kGatherReceive]);
    buffers.return_send = take(bytes[kReturnSend]);
    buffers.directions = take(bytes[kDirectionBytes]);
    buffers.sums = static_cast<float*>(take(bytes[kSums]));
    message_buffers_.push_back(buffers);
    return_receives.push_back(take(bytes[kReturnReceive]));
  }
  chunks_.resize(context_.plan->chunks().size());
  std::vector<const Chunk*> last(window, nullptr);
  for (RankChunk& s : rank_chunks_) {
    const size_t turn = static_cast<size_t>(s.index) % window;
    void* receive = atomic ? take(s.return_receive_bytes) : return_receives[turn];
    MessageBuffers buffers = message_buffers_[turn];
    if (atomic) buffers.sums = static_cast<float*>(take(s.sum_bytes));
    keep_own_messages_in_place(s, rank_, {buffers.gather_send, buffers.gather_receive},
                               {buffers.return_send, receive});
    auto chunk = std::make_unique<Chunk>(context_, config_.chunks, s, buffers, receive, scratch_);
    chunk->set_previous_user(last[turn]);
    last[turn] = chunk.get();
    chunks_[static_cast<size_t>(s.index)] = std::move(chunk);
  }
}

void Pipeline::clear_times() {
  times_.clear();
  for (const auto& chunk : chunks_)
    if (chunk) chunk->clear_times();
}

void Pipeline::prepare(const StepInputs& inputs) {
  clear_times();  // an inactive chunk must not keep the times of an earlier step
  *readback_ = StepReadback{kReject, kReject, kNoFindings, 0, 0};
  Ops& ops = context_.ops();
  Stream& s = *compute_;
  const TableCopy& tables = config_.table_copy;
  if (tables.bytes > 0) ops.copy(s, tables.to, tables.from, tables.bytes);
  initial_findings_ = kNoFindings;
  initial_findings_.gradient_replicas = inputs.gradient_replicas;
  initial_findings_.weight_replicas = inputs.weight_replicas;
  ops.copy(s, context_.results.findings, &initial_findings_, sizeof(Findings));
  ops.copy(s, context_.results.vote_sum, &kReject, sizeof(Vote));
  ops.copy(s, confirm_sum_, &kReject, sizeof(Vote));
  // If a stream fails before it casts the vote of this step, the vote of an earlier step must not
  // remain here.
  ops.copy(s, own_vote_, &kReject, sizeof(Vote));
  ops.copy(s, confirm_vote_, &kReject, sizeof(Vote));
  if (config_.poison) {
    constexpr unsigned char kNanByte = 0xff;  // NaN as f32, bf16 and f16
    ops.fill(s, transient_, kNanByte, workspace_.as<char>() + workspace_.bytes() - transient_);
  }
  if (health_) health_->begin(inputs.collect_health);
  clipping_->enqueue(inputs);
}

void Pipeline::scan() {
  if (scanned_.empty() && config_.master_params.empty()) return;
  Ops& ops = context_.ops();
  times_.begin(kScanSpan, *compute_);
  ops.scan(*compute_, scanned_, context_.tables.params, context_.results.findings);
  ops.check_masters(*compute_, config_.master_params, context_.tables.params,
                    context_.results.findings);
  times_.end(kScanSpan, *compute_);
}

void Pipeline::vote(const StepInputs& inputs, Vote* own, Vote* sum, Vote* host_copy,
                    bool decides_commit) {
  Device& device = *context_.device;
  Ops& ops = context_.ops();
  const bool last =
      context_.plan->problem().options.commit == CommitMode::kAtomic || !decides_commit;
  const int32_t span = decides_commit ? kVoteSpan : kConfirmSpan;
  if (config_.chunks.callbacks) {
    // The vote includes whether a callback has failed.
    device.record(*callbacks_done_, *exchange_);
    device.wait(*compute_, *callbacks_done_);
  }
  ops.cast_vote(*compute_, own, context_.results.findings, inputs.fingerprint, last ? owned_ : 0,
                inputs.local_ok);
  device.record(*vote_ready_, *compute_);
  device.wait(*exchange_, *vote_ready_);
  times_.begin(span, *exchange_);
  if (decides_commit) ops.copy(*exchange_, &readback_->vote_sent, &kOne, sizeof kOne);
  if (!context_.warming_up) {
    if (decides_commit) context_.comm->clear_if_aborted(*exchange_, &readback_->vote_sent);
    context_.comm->reduce_sum(*exchange_, reinterpret_cast<const int64_t*>(own),
                              reinterpret_cast<int64_t*>(sum), kVoteWords);
  }
  if (decides_commit) ops.copy(*exchange_, &readback_->vote_returned, &kOne, sizeof kOne);
  ops.copy(*exchange_, host_copy, sum, sizeof(Vote));
  times_.end(span, *exchange_);
  device.record(*vote_received_, *exchange_);
  device.wait(*compute_, *vote_received_);
}

void Pipeline::adamw(const StepInputs& inputs) {
  const AdamWParams& params = config_.adamw;
  if (params.whole.empty() && params.blocks.empty()) return;
  times_.begin(kAdamWSpan, *compute_);
  context_.ops().commit_adamw(*compute_, params.whole, params.blocks, context_.tables,
                              context_.commit_condition(inputs.fingerprint));
  times_.end(kAdamWSpan, *compute_);
}

void Pipeline::count(const Action& action) {
  if (action.stage == Stage::kOrthogonalize) --resident_;
  if (action.stage == Stage::kGather) resident_peak_ = std::max(resident_peak_, ++resident_);
}

void Pipeline::perform(const Action& action, const StepInputs& inputs) {
  const ProfilerRange range(*context_.device, stage_name(action.stage), action.chunk);
  count(action);
  Chunk* const chunk =
      action.chunk >= 0 ? chunks_[static_cast<size_t>(action.chunk)].get() : nullptr;
  switch (action.stage) {
    case Stage::kScan:
      return scan();
    case Stage::kGather:
      return chunk ? chunk->gather(inputs) : void();
    case Stage::kOrthogonalize:
      return chunk ? chunk->orthogonalize(inputs) : void();
    case Stage::kVote:
      return vote(inputs, own_vote_, context_.results.vote_sum, &readback_->vote_sum, true);
    case Stage::kCommit:
      return chunk ? chunk->commit(inputs) : void();
    case Stage::kAdamW:
      return adamw(inputs);
    case Stage::kConfirm:
      return vote(inputs, confirm_vote_, confirm_sum_, &readback_->confirm_sum, false);
  }
}

void Pipeline::enqueue(const StepInputs& inputs) {
  const ProfilerRange range(*context_.device, context_.warming_up ? "warm-up" : "step");
  callback_failure_ = {};
  prepare(inputs);
  resident_ = 0;
  const int window = context_.plan->problem().options.window;
  int64_t limit = context_.device->launches() + kLaunchesAhead;
  for (const Action& action : order_) {
    perform(action, inputs);
    // Gathers of later chunks still overlap with the next product.
    if (config_.serial && (window == 1 || action.stage != Stage::kGather)) drain();
    if (context_.device->launches() > limit) {
      context_.device->synchronize_caller_stream(caller_deadline_);
      limit = std::numeric_limits<int64_t>::max();
    }
  }
  context_.ops().copy(*compute_, &readback_->findings, context_.results.findings, sizeof(Findings));
  clipping_->report();
  context_.device->record(*finished_, *compute_);
}

// The wait for the step needs no timeout: exchanges end at the timeout of the communicator, and
// local passes always end. Returning earlier would leave the caller with buffers that the step
// still writes.
void Pipeline::wait() {
  context_.device->synchronize_caller_stream(caller_deadline_);
  context_.device->synchronize(*finished_, Deadline::in_ms(kMaxTimeoutMs));
  if (const auto error = context_.device->error()) throw *error;
}

// Waits first, because a GPU can queue only a limited number of launches.
void Pipeline::run_between_steps(FunctionRef<void(Stream&)> enqueue_work) {
  context_.device->synchronize_caller_stream(caller_deadline_);
  enqueue_work(*compute_);
  context_.device->record(*finished_, *compute_);
  wait();
}

// Work that was enqueued before the error still reads and writes the caller's buffers. If the work
// on the caller's stream does not end, the enqueued work never starts and need not be waited for.
void Pipeline::drain_after_error() noexcept {
  constexpr int64_t kDrainTimeoutMs = 60'000;
  try {
    Device& device = *context_.device;
    device.synchronize_caller_stream(caller_deadline_);
    device.record(*vote_ready_, *exchange_);
    device.wait(*compute_, *vote_ready_);
    device.record(*finished_, *compute_);
    device.synchronize(*finished_, Deadline::in_ms(kDrainTimeoutMs));
  } catch (...) {  // a lost device runs no more work
  }
}

// The commits read messages, sums, staged moments, factors and tables. All of these were complete
// before this rank cast its vote.
void Pipeline::roll_forward(int64_t fingerprint, const Vote& vote_sum) {
  StepInputs inputs;
  inputs.fingerprint = fingerprint;
  readback_->vote_sum = vote_sum;
  context_.ops().copy(*compute_, context_.results.vote_sum, &readback_->vote_sum, sizeof(Vote));
  for (const Action& action : order_)
    if (action.stage == Stage::kCommit || action.stage == Stage::kAdamW) perform(action, inputs);
  clipping_->report();  // not yet called if the step failed while it was enqueued
  muonrt::drain(*context_.device, *compute_, *finished_);
}

void Pipeline::wait_caller_stream(void* callers_stream, int64_t timeout_ms) {
  context_.device->wait_caller_stream(*compute_, callers_stream, "step");
  caller_deadline_ = Deadline::in_ms(timeout_ms);
}

void Pipeline::make_caller_stream_wait(void* callers_stream) {
  Device& device = *context_.device;
  if (device.host_reaches_memory()) return;
  if (!callers_) callers_ = device.create_caller_stream();
  device.follow(*callers_, callers_stream, "step");
  device.wait(*callers_, *finished_);
}

std::optional<Error> Pipeline::caller_stream_error() const {
  if (!caller_deadline_.passed()) return std::nullopt;
  try {
    context_.device->synchronize_caller_stream(caller_deadline_);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void Pipeline::drain() {
  context_.device->synchronize_caller_stream(caller_deadline_);
  for (Stream* stream : {compute_.get(), exchange_.get()}) {
    context_.device->record(*callbacks_done_, *stream);
    context_.device->synchronize(*callbacks_done_, Deadline::in_ms(kMaxTimeoutMs));
  }
}

int64_t Pipeline::clock_offset() const {
  Device& device = *context_.device;
  if (device.host_reaches_memory()) return 0;  // host and device have the same clock
  constexpr int kRounds = 5;
  const auto host_clock = [] {
    return std::chrono::nanoseconds(Deadline::Clock::now().time_since_epoch()).count();
  };
  // The offset is stored until the next step, so all calls for one step return the same value.
  const auto slot = static_cast<int32_t>(spans_.size());
  int64_t& device_time = times_.values_of(slot)[0];
  int64_t& offset = times_.values_of(slot)[1];
  if (offset != 0) return offset;
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < kRounds; ++i) {
    const int64_t before = host_clock();
    times_.begin(slot, *compute_);
    muonrt::drain(device, *compute_, *finished_);
    const int64_t trip = host_clock() - before;
    if (trip >= shortest) continue;
    shortest = trip;
    offset = before + trip / 2 - device_time;
  }
  return offset;
}

std::vector<Span> Pipeline::spans() const {
  std::vector<Span> all;
  visit_spans([&](const Span& span) { all.push_back(span); });
  return all;
}

}  // namespace muonrt
