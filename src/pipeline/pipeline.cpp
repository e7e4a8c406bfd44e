#include "pipeline/pipeline.hpp"

#include <algorithm>
#include <map>
#include <new>

#include "backend/local_stream.hpp"
#include "base/checked.hpp"
#include "plan/buffers.hpp"

namespace muonrt {

namespace {

enum : int32_t { kScanSpan, kVoteSpan, kAdamWSpan, kOutcomeSpan };

// Sources of the copies that reset a step; the device may read them at any time.
constexpr Findings kNoFindings{};
const Ballot kReject = reject_preset();
constexpr int64_t kOne = 1;
// Actions that are enqueued before the caller's stream has come to the step, and those where
// Newton-Schulz is not one launch. More might fill a GPU's queue of launches (about a thousand),
// and the next one would then wait without a deadline.
constexpr int kAhead = 64, kAheadOfLaunches = 8;

int64_t aligned(int64_t bytes) { return round_up(bytes, kMemoryAlignment); }

}  // namespace

Pipeline::Pipeline(Context context, int rank, std::vector<SlotPlan> slots, StepWork work)
    : context_(context), rank_(rank), work_(std::move(work)), slots_(std::move(slots)) {
  Device& device = *context_.device;
  const PlanOptions& options = context_.plan->problem().options;
  const auto slot_count = static_cast<int32_t>(context_.plan->slots().size());
  order_ = schedule(slot_count, options.window, options.commit);
  if (options.commit == CommitMode::kAtomic) {
    scanned_ = unpacked();
    const std::vector<int32_t>& watched = work_.clipping.watched;
    scanned_.insert(scanned_.end(), watched.begin(), watched.end());
  } else {
    scanned_ = work_.held;
  }
  compute_ = device.create_stream(StreamKind::kCompute);
  exchange_ = device.create_stream(context_.comm->stream_kind());
  called_ = device.create_event();
  voted_ = device.create_event();
  verdict_in_ = device.create_event();
  finished_ = device.create_event();
  context_.compute = compute_.get();
  context_.exchange = exchange_.get();
  spans_ = {{"scan", -1, Work::kLocal},
            {"vote", -1, Work::kVote},
            {"adamw", -1, Work::kLocal},
            {"outcome", -1, Work::kVote}};
  times_ = SpanTimes(device, spans_.size());
  context_.comm->prepare_reduction(sizeof(Ballot));
  mirror_ = Buffer::shared(device, sizeof(Outcome));
  outcome_ = new (mirror_.data()) Outcome{kReject, kReject, kNoFindings, 0, 0};
  if (work_.health) health_ = std::make_unique<Health>(context_, rank_, slots_);
  work_.chunks.health = health_.get();
  work_.chunks.failure = &function_failure_;
  make_chunks();
  clipping_ = std::make_unique<Clipping>(context_, std::move(work_.clipping));
}

// Those of which not all is packed here (AdamW's, replicas that are not gathered): nobody else
// reads these gradients before the vote.
std::vector<int32_t> Pipeline::unpacked() const {
  std::map<int32_t, int64_t> packed;  // elements by parameter
  for (const SlotPlan& slot : slots_) {
    for (const Piece& p : slot.gather_pieces) packed[p.param] += p.rows * p.cols;
  }
  std::vector<int32_t> out;
  for (const int32_t param : work_.held) {
    const ParamSpec& spec = context_.plan->problem().params[static_cast<size_t>(param)];
    if (packed[param] != grad_layout(spec).local_numel(rank_)) out.push_back(param);
  }
  return out;
}

// Streams go before the memory that their tasks use.
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
  for (const SlotPlan& s : slots_) {
    sizes.add(s.slot, bytes_of(s));
    scratch = std::max(scratch, Chunk::scratch_bytes(context_, work_.chunks, s));
    if (atomic) total += aligned(s.return_receive_bytes) + aligned(s.sum_bytes);
    owned_ += static_cast<int64_t>(s.owned.size());
  }
  total += aligned(scratch);
  for (const SlotBytes& buffers : sizes.in_flight())
    for (const int64_t bytes : buffers) total += aligned(bytes);
  workspace_ = Buffer(*context_.device, total);

  char* at = workspace_.as<char>();
  const auto take = [&at](int64_t bytes) {
    char* here = at;
    at += aligned(bytes);
    return static_cast<void*>(here);
  };
  context_.results.findings = static_cast<Findings*>(take(kMemoryAlignment));
  context_.results.ballot_sum = static_cast<Ballot*>(take(kMemoryAlignment));
  ballot_ = static_cast<Ballot*>(take(kMemoryAlignment));
  second_ballot_ = static_cast<Ballot*>(take(kMemoryAlignment));
  second_verdict_ = static_cast<Ballot*>(take(kMemoryAlignment));
  transient_ = at;
  scratch_ = take(scratch);
  std::vector<void*> return_receives;
  for (const SlotBytes& bytes : sizes.in_flight()) {
    MessageBuffers buffers;
    buffers.gather_send = take(bytes[kGatherSend]);
    buffers.gather_receive = take(bytes[kGatherReceive]);
    buffers.return_send = take(bytes[kReturnSend]);
    buffers.directions = take(bytes[kDirectionBytes]);
    buffers.sums = static_cast<float*>(take(bytes[kSums]));
    message_buffers_.push_back(buffers);
    return_receives.push_back(take(bytes[kReturnReceive]));
  }
  chunks_.resize(context_.plan->slots().size());
  std::vector<const Chunk*> last(window, nullptr);
  for (const SlotPlan& s : slots_) {
    const size_t turn = static_cast<size_t>(s.slot) % window;
    void* receive = atomic ? take(s.return_receive_bytes) : return_receives[turn];
    MessageBuffers buffers = message_buffers_[turn];
    if (atomic) buffers.sums = static_cast<float*>(take(s.sum_bytes));
    auto chunk = std::make_unique<Chunk>(context_, work_.chunks, s, buffers, receive, scratch_);
    chunk->set_previous_user(last[turn]);
    last[turn] = chunk.get();
    chunks_[static_cast<size_t>(s.slot)] = std::move(chunk);
  }
}

void Pipeline::prepare(const StepRun& run) {
  *outcome_ = Outcome{kReject, kReject, kNoFindings, 0, 0};
  Ops& ops = context_.ops();
  Stream& s = *compute_;
  const TableCopy& tables = work_.copy;
  if (tables.bytes > 0) ops.copy(s, tables.to, tables.from, tables.bytes);
  start_ = kNoFindings;
  start_.gradient_replicas = run.gradient_replicas;
  start_.weight_replicas = run.weight_replicas;
  ops.copy(s, context_.results.findings, &start_, sizeof(Findings));
  ops.copy(s, context_.results.ballot_sum, &kReject, sizeof(Ballot));
  ops.copy(s, second_verdict_, &kReject, sizeof(Ballot));
  // This rank's own, too: a stream that fails before it casts must not leave an older one standing.
  ops.copy(s, ballot_, &kReject, sizeof(Ballot));
  ops.copy(s, second_ballot_, &kReject, sizeof(Ballot));
  if (work_.poison) {
    constexpr unsigned char kNanByte = 0xff;  // of every float and bf16
    ops.fill(s, transient_, kNanByte, workspace_.as<char>() + workspace_.bytes() - transient_);
  }
  if (health_) health_->begin(run.health);
  clipping_->enqueue(run);
}

void Pipeline::scan() {
  if (scanned_.empty()) return;
  times_.begin(kScanSpan, *compute_);
  context_.ops().scan(*compute_, scanned_, context_.tables.params, context_.results.findings);
  times_.end(kScanSpan, *compute_);
}

void Pipeline::vote(const StepRun& run, Ballot* mine, Ballot* sum, Ballot* mirror, bool binding) {
  Device& device = *context_.device;
  Ops& ops = context_.ops();
  const bool last = context_.plan->problem().options.commit == CommitMode::kAtomic || !binding;
  const int32_t span = binding ? kVoteSpan : kOutcomeSpan;
  if (work_.chunks.functions) {
    // What they report counts in this ballot.
    device.record(*called_, *exchange_);
    device.wait(*compute_, *called_);
  }
  ops.cast_ballot(*compute_, mine, context_.results.findings, run.stamp, last ? owned_ : 0,
                  run.local_ok);
  device.record(*voted_, *compute_);
  device.wait(*exchange_, *voted_);
  times_.begin(span, *exchange_);
  if (binding) ops.copy(*exchange_, &outcome_->vote_entered, &kOne, sizeof kOne);
  if (!context_.rehearses) {
    if (binding) context_.comm->retract(*exchange_, &outcome_->vote_entered);
    context_.comm->reduce_sum(*exchange_, reinterpret_cast<const int64_t*>(mine),
                              reinterpret_cast<int64_t*>(sum), kBallotWords);
  }
  if (binding) ops.copy(*exchange_, &outcome_->vote_passed, &kOne, sizeof kOne);
  ops.copy(*exchange_, mirror, sum, sizeof(Ballot));
  times_.end(span, *exchange_);
  device.record(*verdict_in_, *exchange_);
  device.wait(*compute_, *verdict_in_);
}

void Pipeline::adamw(const StepRun& run) {
  const AdamWork& work = work_.adamw;
  if (work.whole.empty() && work.pieces.empty()) return;
  times_.begin(kAdamWSpan, *compute_);
  context_.ops().commit_adamw(*compute_, work.whole, work.pieces, context_.tables,
                              context_.verdict(run.stamp));
  times_.end(kAdamWSpan, *compute_);
}

void Pipeline::count(const Action& action) {
  if (action.stage == Stage::kOrthogonalize) --resident_;
  if (action.stage == Stage::kGather) resident_peak_ = std::max(resident_peak_, ++resident_);
}

void Pipeline::perform(const Action& action, const StepRun& run) {
  const ProfilerRange range(*context_.device, stage_name(action.stage), action.slot);
  count(action);
  Chunk* const chunk = action.slot >= 0 ? chunks_[static_cast<size_t>(action.slot)].get() : nullptr;
  switch (action.stage) {
    case Stage::kScan:
      return scan();
    case Stage::kGather:
      return chunk ? chunk->gather() : void();
    case Stage::kOrthogonalize:
      return chunk ? chunk->orthogonalize() : void();
    case Stage::kVote:
      return vote(run, ballot_, context_.results.ballot_sum, &outcome_->verdict, true);
    case Stage::kCommit:
      return chunk ? chunk->commit(run) : void();
    case Stage::kAdamW:
      return adamw(run);
    case Stage::kOutcome:
      return vote(run, second_ballot_, second_verdict_, &outcome_->outcome, false);
  }
}

void Pipeline::enqueue(const StepRun& run) {
  const ProfilerRange range(*context_.device, context_.rehearses ? "rehearsal" : "step");
  function_failure_ = {};
  prepare(run);
  resident_ = 0;
  const int ahead = recorder_of(*context_.device) ? kAhead : kAheadOfLaunches;
  int enqueued = 0;
  for (const Action& action : order_) {
    perform(action, run);
    if (work_.serial) drain();
    if (++enqueued == ahead) context_.device->synchronize_joined(join_deadline_);
  }
  context_.ops().copy(*compute_, &outcome_->findings, context_.results.findings, sizeof(Findings));
  clipping_->report();
  context_.device->record(*finished_, *compute_);
}

// The second time Newton-Schulz is recorded, which one that measures is not.
void Pipeline::rehearse() {
  context_.rehearses = true;
  context_.ops().fill(*compute_, workspace_.data(), 0, workspace_.bytes());
  const int times = recorder_of(*context_.device) ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    StepRun run;
    run.local_ok = false;
    run.health = health_ && i == 0;
    enqueue(run);
    wait();
  }
  context_.rehearses = false;
  // No step has run yet.
  times_.forget();
  for (const auto& chunk : chunks_)
    if (chunk) chunk->forget_times();
  resident_peak_ = 0;
}

// No deadline of its own: exchanges end by the transport's, and local passes end by themselves. To
// give up on those would hand buffers back that are still being written.
void Pipeline::wait() {
  context_.device->synchronize_joined(join_deadline_);
  context_.device->synchronize(*finished_, Deadline::in_ms(kMaxTimeoutMs));
  if (const auto error = context_.device->error()) throw *error;
}

// Behind a caller's stream that does not end nothing is enqueued: there is room for few launches.
void Pipeline::run_now(FunctionRef<void(Stream&)> work) {
  context_.device->synchronize_joined(join_deadline_);
  work(*compute_);
  context_.device->record(*finished_, *compute_);
  wait();
}

// What a failed enqueue has left behind still reads and writes the caller's buffers. Nothing ends
// behind a caller's stream that does not.
void Pipeline::abandon() noexcept {
  constexpr int64_t kPatienceMs = 60'000;
  try {
    Device& device = *context_.device;
    device.synchronize_joined(join_deadline_);
    device.record(*voted_, *exchange_);
    device.wait(*compute_, *voted_);
    device.record(*finished_, *compute_);
    device.synchronize(*finished_, Deadline::in_ms(kPatienceMs));
  } catch (...) {  // a lost device has nothing left to wait for
  }
}

// All that the commits read was there before this rank cast its ballot: messages, sums, staged
// moments, factors, tables.
void Pipeline::roll_forward(int64_t stamp, const Ballot& verdict) {
  StepRun run;
  run.stamp = stamp;
  outcome_->verdict = verdict;
  context_.ops().copy(*compute_, context_.results.ballot_sum, &outcome_->verdict, sizeof(Ballot));
  for (const Action& action : order_)
    if (action.stage == Stage::kCommit || action.stage == Stage::kAdamW) perform(action, run);
  clipping_->report();  // a step that could not be enqueued to its end has not
  muonrt::drain(*context_.device, *compute_, *finished_);
}

void Pipeline::join(void* callers_stream, int64_t timeout_ms) {
  context_.device->join(*compute_, callers_stream, "step");
  join_deadline_ = Deadline::in_ms(timeout_ms);
}

std::optional<Error> Pipeline::late() const {
  if (!join_deadline_.passed()) return std::nullopt;
  try {
    context_.device->synchronize_joined(join_deadline_);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void Pipeline::drain() {
  context_.device->synchronize_joined(join_deadline_);
  for (Stream* stream : {compute_.get(), exchange_.get()}) {
    context_.device->record(*called_, *stream);
    context_.device->synchronize(*called_, Deadline::in_ms(kMaxTimeoutMs));
  }
}

std::vector<Span> Pipeline::spans() const {
  std::vector<Span> all;
  visit_spans([&](const Span& span) { all.push_back(span); });
  return all;
}

}  // namespace muonrt
