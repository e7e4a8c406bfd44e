#include <algorithm>
#include <chrono>

#include "optimizer/agreement.hpp"
#include "optimizer/explain.hpp"
#include "optimizer/optimizer.hpp"

namespace muonrt {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_device_scalars(const OptimizerSettings& settings, const Device& device,
                          const StepSettings& step, int64_t logits) {
  for (const auto& [name, pointer] :
       {std::pair{"device_grad_scale_inv", step.device_grad_scale_inv},
        {"grad_multiplier", step.grad_multiplier},
        {"found_inf", step.found_inf},
        {"qk_logits", step.qk_logits}}) {
    MUONRT_REQUIRE(reinterpret_cast<uintptr_t>(pointer) % 4 == 0 && device.reaches(pointer),
                   Status::kInvalidArgument, "step: ", name,
                   " is not f32 in memory that the device reaches (", device.describe(),
                   "); pass a buffer of that device");
  }
  MUONRT_REQUIRE(!step.qk_logits || step.n_qk_logits == logits, Status::kInvalidArgument,
                 "step: n_qk_logits is ", step.n_qk_logits,
                 " (the layers that parameters name have ", logits,
                 " query heads); pass one logit for each");
  MUONRT_REQUIRE(
      !step.stream || settings.device == DeviceKind::kCuda, Status::kInvalidArgument,
      "step: stream is given on the host (which has none of the caller's); leave it null");
}

/// Of a function of the caller's, in the last step.
std::optional<Error> function_error(const OptimizerSettings& settings, const FunctionFailure& f) {
  if (!f.function) return std::nullopt;
  return make_error(Status::kCallback, "param '",
                    settings.params[static_cast<size_t>(f.param)].name, "': ", f.function,
                    " returned ", f.code, " (0 is success); nothing has changed");
}

/// What `work` of a pipeline throws; what is late behind a caller's stream is late because of it.
template <class Work>
std::optional<Error> step_error(const Pipeline& pipeline, const Work& work) {
  auto error = error_of(work);
  if (!error || error->status() != Status::kTimeout) return error;
  const auto theirs = pipeline.late();
  return theirs ? theirs : error;
}

void measure(const Pipeline& pipeline, double seconds, StepReport& report) {
  double local = 0, products = 0, exchange = 0;
  pipeline.visit_spans([&](const Span& span) {
    const double took = static_cast<double>(span.end - span.begin) * 1e-9;
    if (span.work == Work::kLocal) local += took;
    if (span.work == Work::kProducts) products += took;
    if (span.on_comm()) exchange += took;
  });
  report.seconds = seconds;
  report.local_seconds = local;
  report.product_seconds = products;
  report.exchange_seconds = exchange;
  report.exposed_seconds = std::max(0.0, seconds - local - products);
}

}  // namespace

// Nothing behind a vote takes memory, and what explains one takes none that it needs: what has
// committed is told and counted, and no rank misses the exchanges of the others.

// A rank whose own arguments are bad still meets its peers in every exchange; it reads no gradient
// and votes no, so that no vote passes and nobody compares its stamp.
StepRun Optimizer::prepare(FunctionRef<StepSettings()> read, StepSettings& step,
                           std::optional<Error>& mine) {
  StepRun run;
  const int64_t every = settings_.health_every, committed = record_.steps();
  run.health = every > 0 && (committed + 1) % every == 0;
  mine = error_of([&] {
    step = read();
    plans_.pipeline().join(step.stream, settings_.timeout_ms);
    run.stamp = tables_.fill(settings_, plans_.plan(), step, committed, plans_.in_blocks());
    check_device_scalars(settings_, *device_, step, clipper_.logits());
    run.factors = {static_cast<float>(step.grad_scale_inv), step.device_grad_scale_inv,
                   step.grad_multiplier, step.found_inf};
    run.qk_logits = step.qk_logits;
    first_check_.begin(plans_.pipeline(), settings_, tables_.params(), run);
  });
  run.local_ok = !mine;
  if (mine) tables_.sit_out();
  return run;
}

// Puts the whole step in the streams.
void Optimizer::enqueue(const StepRun& run) {
  record_.begin(run.stamp);
  Pipeline& pipeline = plans_.pipeline();
  if (const auto error = step_error(pipeline, [&] { pipeline.enqueue(run); })) {
    comm_->abort(error->status(), error->message());
    pipeline.abandon();
    fail(*error);
  }
}

void Optimizer::wait() {
  Pipeline& pipeline = plans_.pipeline();
  if (const auto error = step_error(pipeline, [&] { pipeline.wait(); })) fail(*error);
  StepEnd end = record_.end_of(pipeline.outcome());
  const auto error = comm_->error();
  end.comm_failed = error.has_value();
  if (error && judge(end) > StepResult::kRejected) fail(*error);
  plans_.count_matrices();
}

Status Optimizer::step(FunctionRef<StepSettings()> read, StepReport& report) {
  record_.require_usable();
  const auto start = std::chrono::steady_clock::now();
  if (plans_.blocks()) record_.agree_on_steps(*comm_, plans_.period());
  plans_.choose(record_.steps());
  report = StepReport{};
  report.step = record_.steps();
  const int64_t bytes_before = comm_->bytes_sent();
  StepSettings step;
  std::optional<Error> mine;
  const StepRun run = prepare(read, step, mine);
  enqueue(run);
  report.enqueue_seconds = seconds_since(start);
  wait();
  if (!mine) mine = function_error(settings_, plans_.pipeline().function_failure());
  std::optional<Error> agreed;
  if (const auto error = error_of([&] { agreed = conclude(step, mine, report); }))
    fail(error->of_ended_comm());
  if (agreed) {
    // What all ranks have agreed on leaves the optimizer usable, unless a device or a stream is
    // bad.
    if (!leaves_usable(agreed->status())) fail(*agreed);
    throw *agreed;
  }
  if (run.health) take_health(report);
  measure(plans_.pipeline(), seconds_since(start), report);
  report.bytes_sent = comm_->bytes_sent() - bytes_before;
  return report.skipped ? Status::kSkipped : Status::kOk;
}

// What the votes say, the same on every rank: committed, skipped, or rejected with this error.
std::optional<Error> Optimizer::conclude(const StepSettings& step, const std::optional<Error>& mine,
                                         StepReport& report) {
  const Outcome& outcome = plans_.pipeline().outcome();
  const StepEnd end = record_.end_of(outcome);
  const StepResult result = judge(end);
  if (result == StepResult::kRejected) {
    return explain_rejection(
        *comm_, mine,
        step_arguments(settings_, step, tables_, outcome.findings, record_.steps(), first_check_),
        [&] { return first_check_.difference(*comm_, settings_, end.verdict); });
  }
  const Ballot& last = result == StepResult::kSkipped ? end.verdict : last_ballot(end);
  report.planned = std::ssize(plans_.plan().matrices());
  report.orthogonalized = last.orthogonalized;
  if (result == StepResult::kSkipped) {
    report.skipped = true;
    explain_skip(*comm_, found_in(outcome.findings, tables_, settings_), record_.found_of_ranks(),
                 report);
    return std::nullopt;
  }
  report.zero_matrices = last.zero_matrices;
  MUONRT_REQUIRE(
      result == StepResult::kCommitted, Status::kTorn, "an update was not finite on ",
      comm_->size() - last.consent,
      " ranks after the gradients had passed (eager commit); reload a checkpoint, or use "
      "MUONRT_COMMIT_ATOMIC. Here: ",
      words_of(settings_, found_in(outcome.findings, tables_, settings_), rank()));
  MUONRT_CHECK_INTERNAL(report.orthogonalized == report.planned, "orthogonalized ",
                        report.orthogonalized, ", planned ", report.planned);
  report.grad_norm = plans_.pipeline().clipping().grad_norm();
  note_commit();
  record_.note_commit(end.verdict);
  report.step = record_.steps();
  report.clipped_heads = std::ssize(clipper_.clipped());
  return std::nullopt;
}

void Optimizer::note_commit() {
  clipper_.note_commit(settings_, tables_.params(), plans_.pipeline().clipping().logits());
  tables_.count_commit();
  first_check_.note_commit(plans_.pipeline().outcome().findings.written != 0);
}

// The communicator is closed first; see VoteRecord::note_failure.
void Optimizer::fail(const Error& error) {
  comm_->abort(error.status(), error.message());
  throw record_.note_failure(error, plans_.pipeline().outcome());
}

Recovery Optimizer::recover(Comm& survivors, SurvivorPolicy policy) {
  return record_.settle(survivors, policy, [&](int64_t stamp, const Ballot& verdict) {
    device_->clear_error();
    plans_.pipeline().roll_forward(stamp, verdict);
    note_commit();
  });
}

// The step is what it is by now: that its statistics fail is the next step's error.
void Optimizer::take_health(StepReport& report) {
  if (const auto error = error_of(
          [&] { plans_.take_health(tables_.params(), record_.steps(), report.skipped); })) {
    comm_->abort(error->status(), error->message());
    record_.end(error->of_ended_comm().between("health statistics of the step before: "));
    return;
  }
  report.health = true;
}

}  // namespace muonrt
