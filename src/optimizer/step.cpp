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
                          const StepArgs& step, int64_t logits) {
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
std::optional<Error> callback_error(const OptimizerSettings& settings, const CallbackFailure& f) {
  if (!f.function) return std::nullopt;
  return make_error(Status::kCallback, "param '",
                    settings.params[static_cast<size_t>(f.param)].name, "': ", f.function,
                    " returned ", f.code, " (0 is success); nothing has changed");
}

/// What `work` of a pipeline throws; what is late behind a caller's stream is late because of it.
template <class Work>
std::optional<Error> capture_step_error(const Pipeline& pipeline, const Work& work) {
  auto error = capture_error(work);
  if (!error || error->status() != Status::kTimeout) return error;
  const auto theirs = pipeline.caller_stream_error();
  return theirs ? theirs : error;
}

void fill_timings(const Pipeline& pipeline, double seconds, StepReport& report) {
  double local = 0, products = 0, exchange = 0;
  pipeline.visit_spans([&](const Span& span) {
    const double took = static_cast<double>(span.end - span.begin) * 1e-9;
    if (span.kind == SpanKind::kLocal) local += took;
    if (span.kind == SpanKind::kProducts) products += took;
    if (span.on_comm()) exchange += took;
  });
  report.seconds = seconds;
  report.local_seconds = local;
  report.gemm_seconds = products;
  report.exchange_seconds = exchange;
  report.exposed_seconds = std::max(0.0, seconds - local - products);
}

}  // namespace

// Nothing behind a vote takes memory, and what explains one takes none that it needs: what has
// committed is told and counted, and no rank misses the exchanges of the others.

// A rank whose own arguments are bad still meets its peers in every exchange; it reads no gradient
// and votes no, so that no vote passes and nobody compares its stamp.
StepInputs Optimizer::read_inputs(FunctionRef<StepArgs()> read, StepArgs& step,
                                  std::optional<Error>& mine) {
  StepInputs run;
  const int64_t every = settings_.health_every, committed = commit_state_.steps();
  run.collect_health = every > 0 && (committed + 1) % every == 0;
  mine = capture_error([&] {
    step = read();
    pipelines_.pipeline().wait_caller_stream(step.stream, settings_.timeout_ms);
    run.fingerprint = param_tables_.fill_for_step(settings_, pipelines_.plan(), step, committed,
                                                  pipelines_.is_block_step());
    check_device_scalars(settings_, *device_, step, qk_clipper_.logits());
    run.factors = {static_cast<float>(step.grad_scale_inv), step.device_grad_scale_inv,
                   step.grad_multiplier, step.found_inf};
    run.qk_logits = step.qk_logits;
    consistency_check_.run_before_step(pipelines_.pipeline(), settings_, param_tables_.params(),
                                       run);
  });
  run.local_ok = !mine;
  if (mine) param_tables_.deactivate_all();
  return run;
}

// Puts the whole step in the streams.
void Optimizer::enqueue(const StepInputs& run) {
  commit_state_.begin_step(run.fingerprint);
  Pipeline& pipeline = pipelines_.pipeline();
  if (const auto error = capture_step_error(pipeline, [&] { pipeline.enqueue(run); })) {
    comm_->abort(error->status(), error->message());
    pipeline.drain_after_error();
    abort_and_throw(*error);
  }
}

void Optimizer::wait() {
  Pipeline& pipeline = pipelines_.pipeline();
  if (const auto error = capture_step_error(pipeline, [&] { pipeline.wait(); }))
    abort_and_throw(*error);
  StepEndState end = commit_state_.end_state(pipeline.readback());
  const auto error = comm_->error();
  end.comm_failed = error.has_value();
  if (error && determine_outcome(end) > StepOutcome::kRejected) abort_and_throw(*error);
  pipelines_.count_orthogonalized();
}

Status Optimizer::step(FunctionRef<StepArgs()> read, StepReport& report) {
  commit_state_.require_usable();
  const auto start = std::chrono::steady_clock::now();
  if (pipelines_.block_plan()) commit_state_.agree_on_steps(*comm_, pipelines_.block_period());
  pipelines_.select_step(commit_state_.steps());
  report = StepReport{};
  report.step = commit_state_.steps();
  const int64_t bytes_before = comm_->bytes_sent();
  StepArgs step;
  std::optional<Error> mine;
  const StepInputs run = read_inputs(read, step, mine);
  enqueue(run);
  report.enqueue_seconds = seconds_since(start);
  wait();
  if (!mine) mine = callback_error(settings_, pipelines_.pipeline().callback_failure());
  std::optional<Error> agreed;
  if (const auto error = capture_error([&] { agreed = apply_vote_result(step, mine, report); }))
    abort_and_throw(error->as_comm_error());
  if (agreed) {
    // What all ranks have agreed on leaves the optimizer usable, unless a device or a stream is
    // bad.
    if (!leaves_optimizer_usable(agreed->status())) abort_and_throw(*agreed);
    throw *agreed;
  }
  if (run.collect_health) collect_health(report);
  fill_timings(pipelines_.pipeline(), seconds_since(start), report);
  report.bytes_sent = comm_->bytes_sent() - bytes_before;
  return report.skipped ? Status::kSkipped : Status::kOk;
}

// What the votes say, the same on every rank: committed, skipped, or rejected with this error.
std::optional<Error> Optimizer::apply_vote_result(const StepArgs& step,
                                                  const std::optional<Error>& mine,
                                                  StepReport& report) {
  const StepReadback& outcome = pipelines_.pipeline().readback();
  const StepEndState end = commit_state_.end_state(outcome);
  const StepOutcome result = determine_outcome(end);
  if (result == StepOutcome::kRejected) {
    return explain_rejection(
        *comm_, mine,
        make_step_table(settings_, step, param_tables_, outcome.findings, commit_state_.steps(),
                        consistency_check_),
        [&] { return consistency_check_.find_replica_mismatch(*comm_, settings_, end.vote_sum); });
  }
  const Vote& last = result == StepOutcome::kSkipped ? end.vote_sum : final_vote_sum(end);
  report.planned = std::ssize(pipelines_.plan().matrices());
  report.orthogonalized = last.orthogonalized;
  if (result == StepOutcome::kSkipped) {
    report.skipped = true;
    explain_skip(*comm_, nonfinite_source(outcome.findings, param_tables_, settings_),
                 commit_state_.nonfinite_by_rank(), report);
    return std::nullopt;
  }
  report.zero_matrices = last.zero_matrices;
  MUONRT_REQUIRE(
      result == StepOutcome::kCommitted, Status::kTorn, "an update was not finite on ",
      comm_->size() - last.consent,
      " ranks after the gradients had passed (eager commit); reload a checkpoint, or use "
      "MUONRT_COMMIT_ATOMIC. Here: ",
      words_of(settings_, nonfinite_source(outcome.findings, param_tables_, settings_), rank()));
  MUONRT_CHECK_INTERNAL(report.orthogonalized == report.planned, "orthogonalized ",
                        report.orthogonalized, ", planned ", report.planned);
  report.grad_norm = pipelines_.pipeline().clipping().grad_norm();
  finish_commit();
  commit_state_.on_commit(end.vote_sum);
  report.step = commit_state_.steps();
  report.clipped_heads = std::ssize(qk_clipper_.clipped());
  return std::nullopt;
}

void Optimizer::finish_commit() {
  qk_clipper_.on_commit(settings_, param_tables_.params(),
                        pipelines_.pipeline().clipping().logits());
  param_tables_.on_commit();
  consistency_check_.on_commit(pipelines_.pipeline().readback().findings.wrote_nonfinite != 0);
}

// The communicator is closed first; see CommitState::on_failure.
void Optimizer::abort_and_throw(const Error& error) {
  comm_->abort(error.status(), error.message());
  throw commit_state_.on_failure(error, pipelines_.pipeline().readback());
}

Recovery Optimizer::recover(Comm& survivors, SurvivorPolicy policy) {
  return commit_state_.recover(survivors, policy, [&](int64_t fingerprint, const Vote& vote_sum) {
    device_->clear_error();
    pipelines_.pipeline().roll_forward(fingerprint, vote_sum);
    finish_commit();
  });
}

// The step is what it is by now: that its statistics fail is the next step's error.
void Optimizer::collect_health(StepReport& report) {
  if (const auto error = capture_error([&] {
        pipelines_.collect_health(param_tables_.params(), commit_state_.steps(), report.skipped);
      })) {
    comm_->abort(error->status(), error->message());
    commit_state_.set_fatal_error(
        error->as_comm_error().with_context("health statistics of the step before: "));
    return;
  }
  report.has_health = true;
}

}  // namespace muonrt
