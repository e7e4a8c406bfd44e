#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "base/fits_f32.hpp"
#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/qk_clip.hpp"
#include "optimizer/settings/describe.hpp"

namespace muonrt {

namespace {

/// A setting as the kernels take it. Errors: INVALID_ARGUMENT if it overflows or vanishes there.
float as_float(const char* what, double value) {
  MUONRT_REQUIRE(fits_f32(value), Status::kInvalidArgument, what, " is ", value,
                 " (not representable in f32); use 0 or a number from 1e-37 to 1e38");
  return static_cast<float>(value);
}

/// A group's rate or decay times a matrix's factors, as kernels multiply them. Errors:
/// INVALID_ARGUMENT if the product overflows or vanishes there.
void check_product(const std::string& param, const char* what, double product) {
  MUONRT_REQUIRE(fits_f32(product), Status::kInvalidArgument, "step: param '", param, "': ", what,
                 " is ", product,
                 " (not representable in f32); use 0 or a number from 1e-37 to 1e38");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What a weight loses to decay, as a share of itself, at this rate.
float decay_of(const GroupSettings& group, double rate) {
  const char* const what = "step: weight decay of a step";
  switch (group.weight_decay_kind) {
    case WeightDecayKind::kIndependent:
      return as_float(what, group.weight_decay);
    case WeightDecayKind::kLrSquared:
      return as_float(what, rate * rate * group.weight_decay);
    case WeightDecayKind::kDecoupled:
    case WeightDecayKind::kCautious:
      break;
  }
  return as_float(what, rate * group.weight_decay);
}

void check_step(const StepSettings& step) {
  MUONRT_REQUIRE(std::isfinite(step.lr) && step.lr >= 0, Status::kInvalidArgument, "step: lr is ",
                 step.lr, " (it has no default; finite and >= 0); set it for every step");
  MUONRT_REQUIRE(fits_f32(step.grad_scale_inv) && step.grad_scale_inv > 0, Status::kInvalidArgument,
                 "step: grad_scale_inv is ", step.grad_scale_inv,
                 " (> 0 and representable in f32); use 1 where gradients are not scaled, else a "
                 "number from 1e-37 to 1e38");
}

}  // namespace

// Nothing of the caller's is read: gradients need not be there yet. The agreement that ends the
// creation is what no rank's first exchange overtakes.
void Optimizer::rehearse() {
  if (!device_->wants_rehearsal()) return;
  for (size_t i = 0; i < settings_.params.size() + kept_.size(); ++i) params_[i].active = 0;
  std::fill_n(muon_, settings_.groups.size(), MuonScalars{});
  std::fill_n(adam_, settings_.params.size(), AdamScalars{});
  pipeline_->rehearse();
  if (block_pipeline_) block_pipeline_->rehearse();
}

bool Optimizer::in_blocks() const {
  return block_pipeline_ && steps_ % block_period(settings_) != 0;
}

void Optimizer::apply(const StepSettings& step) {
  check_step(step);
  for (const int64_t p : step.without_grad) check_param(p, "step: without_grad: ");
  const auto count = static_cast<int64_t>(settings_.params.size());
  for (int64_t i = 0; i < count; ++i) params_[i].active = 1;
  for (const int64_t p : step.without_grad) params_[p].active = 0;
  for (int64_t i = 0; i < count; ++i) {
    ParamView& view = params_[i];
    const int64_t every = group_of(i).update_every;
    view.watched = 0;
    if (steps_ % every != every - 1) {
      view.watched = view.active != 0 && view.grad != nullptr;
      view.active = 0;
    }
    MUONRT_REQUIRE(view.grad || view.grads() == 0 || !view.active, Status::kInvalidArgument,
                   "param '", settings_.params[static_cast<size_t>(i)].name,
                   "': grad is null (it was not announced in without_grad, and this rank holds ",
                   view.grads(), " elements); bind a gradient or announce it on every rank");
  }
}

void Optimizer::fill_scalars(const StepSettings& step) {
  const auto scale = static_cast<float>(step.grad_scale_inv);
  for (size_t g = 0; g < settings_.groups.size(); ++g) {
    const GroupSettings& group = settings_.groups[g];
    MuonScalars s;
    s.momentum = static_cast<float>(group.momentum);
    s.heavy_ball = group.momentum_kind == MomentumKind::kHeavyBall;
    s.nesterov = group.nesterov;
    const double block = in_blocks() && group.blocks.period > 1 ? group.blocks.lr_factor : 1.0;
    s.rate = as_float("step: lr x lr_factor", step.lr * group.lr_factor * block);
    // Decay does not know of blocks: its rate is that of every step.
    s.decay = decay_of(group, step.lr * group.lr_factor);
    s.cautious = group.weight_decay_kind == WeightDecayKind::kCautious;
    s.grad_scale = scale;
    s.normuon_beta2 = static_cast<float>(group.normuon_beta2);
    muon_[g] = s;
  }
  for (size_t i = 0; i < settings_.params.size(); ++i) {
    params_[i].grad_scale = scale;
    params_[i].step = static_cast<uint64_t>(steps_);
    const GroupSettings& group = settings_.groups[settings_.params[i].group];
    if (group.role != Role::kAdamW) {
      const ParamSpec& spec = current_plan_->problem().params[i];
      const MuonScalars& scalars = muon_[settings_.params[i].group];
      const auto check = [&](double update_scale, double decay_scale) {
        check_product(spec.name, "lr x all factors and scales", scalars.rate * update_scale);
        check_product(spec.name, "weight decay of a step", scalars.decay * decay_scale);
      };
      if (spec.parts.empty()) check(spec.update_scale, spec.decay_scale);
      for (const MatrixPart& part : spec.parts) check(part.update_scale, part.decay_scale);
      continue;
    }
    const auto t = static_cast<double>(adam_steps_[i] + 1);
    const double factor = settings_.params[i].lr_factor;
    AdamScalars s;
    s.beta1 = static_cast<float>(group.beta1);
    s.beta2 = static_cast<float>(group.beta2);
    s.eps = static_cast<float>(group.eps);
    s.rate = as_float("step: lr x all lr_factors", step.lr * group.lr_factor * factor);
    s.decay = decay_of(group, step.lr * group.lr_factor * factor);
    s.cautious = group.weight_decay_kind == WeightDecayKind::kCautious;
    // From the rounded betas, which are those that the moments are made with.
    const double rest1 = 1.0 - std::pow(double{s.beta1}, t);
    const double rest2 = 1.0 - std::pow(double{s.beta2}, t);
    const bool folded = group.adam_form == AdamForm::kFolded;
    s.correction1 = static_cast<float>((folded ? std::sqrt(rest2) : 1.0) / rest1);
    s.correction2 = static_cast<float>(folded ? 1.0 : 1.0 / rest2);
    s.grad_scale = scale;
    adam_[i] = s;
  }
}

int64_t Optimizer::stamp(const StepSettings& step) const {
  Hash hash;
  hash.value(steps_);
  hash.value(step.lr);
  hash.value(step.grad_scale_inv);
  for (size_t i = 0; i < settings_.params.size(); ++i) hash.value(int64_t{params_[i].active});
  for (const int64_t steps : adam_steps_) hash.value(steps);
  for (const GroupSettings& g : settings_.groups) {
    for (const double v : {g.lr_factor, g.weight_decay, g.momentum, g.beta1, g.beta2, g.eps}) {
      hash.value(v);
    }
    hash.value(int64_t{g.nesterov});
    hash.value(g.normuon_beta2);
    hash.value(g.blocks.lr_factor);
  }
  return static_cast<int64_t>(hash.digest());
}

// Another step number may mean another plan, whose exchanges would not meet those of the peers; so
// it cannot wait for the vote.
void Optimizer::agree_on_steps() {
  std::vector<int64_t> all;
  const auto error = error_of([&] {
    all.resize(static_cast<size_t>(comm_->size()));
    comm_->allgather(&steps_, all.data(), sizeof steps_);
  });
  if (error) {
    comm_->abort(error->status(), error->message());
    poison_ = as_end(*error);
    throw *poison_;
  }
  for (size_t r = 1; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r] == all[0], Status::kMismatch, "step: number of committed steps is ",
                   all[r], " on rank ", r, ", but ", all[0], " on rank 0 (with block_period ",
                   block_period(settings_),
                   " it says which steps take blocks); set the same on every rank");
  }
}

void Optimizer::require_usable() const {
  if (!poison_) return;
  throw Error(Status::kInvalidState,
              cat("this optimizer is unusable since an earlier step failed (",
                  status_name(poison_->status()), ": ", poison_->message(), "); ",
                  settled_ ? cat(steps_,
                                 " steps are committed, as the ranks have settled: make another "
                                 "over the ranks that are left, from this one's state")
                           : "destroy it and resume from a checkpoint"));
}

// A rank whose own arguments are bad still meets its peers in every exchange; it reads no gradient
// and votes no.
std::optional<Error> Optimizer::prepare(const std::function<StepSettings()>& read,
                                        StepSettings& step) {
  auto mine = error_of([&] {
    step = read();
    current_->join(step.stream, settings_.timeout_ms);
    apply(step);
    fill_scalars(step);
    check_device_scalars(step);
  });
  if (mine) {
    for (size_t i = 0; i < settings_.params.size(); ++i) params_[i].active = params_[i].watched = 0;
  }
  function_failure_ = {};
  follow_params();
  return mine;
}

// Puts the whole step in the streams.
void Optimizer::enqueue(const StepRun& run) {
  last_stamp_ = run.stamp;
  if (const auto error = cause_of(error_of([&] { current_->enqueue(run); }))) {
    comm_->abort(error->status(), error->message());
    current_->abandon();
    fail(*error);
  }
}

void Optimizer::wait() {
  if (const auto error = cause_of(error_of([&] { current_->wait(); }))) fail(*error);
  StepEnd end = step_end();
  const auto error = comm_->error();
  end.comm_failed = error.has_value();
  if (error && judge(end) > StepResult::kRejected) fail(*error);
  orthogonalized_ += current_->owned_matrices();
}

StepEnd Optimizer::step_end() const {
  const Outcome& outcome = current_->outcome();
  // Flags first, as a stream that is late writes them: a verdict is then no older than they are.
  const bool entered = outcome.vote_entered != 0, passed = outcome.vote_passed != 0;
  return {.verdict = outcome.verdict,
          .outcome = outcome.outcome,
          .world = comm_->size(),
          .stamp = last_stamp_,
          .commit = settings_.commit,
          .vote_entered = entered,
          .vote_passed = passed};
}

// What the votes say, the same on every rank: committed, skipped, or rejected, which throws.
void Optimizer::conclude(const StepSettings& step, const std::optional<Error>& mine,
                         StepReport& report) {
  const StepEnd end = step_end();
  switch (judge(end)) {
    case StepResult::kCommitted:
    case StepResult::kTorn:
      return finish(end, report);
    case StepResult::kSkipped:
      return explain_skip(report);
    default:
      return explain_rejection(mine, step);
  }
}

Status Optimizer::step(const std::function<StepSettings()>& read, StepReport& report) {
  require_usable();
  const auto start = std::chrono::steady_clock::now();
  if (block_pipeline_) agree_on_steps();
  current_ = in_blocks() ? block_pipeline_.get() : pipeline_.get();
  current_plan_ = in_blocks() ? block_plan_.get() : plan_.get();
  report = StepReport{};
  report.step = steps_;
  bytes_before_ = comm_->bytes_sent();
  StepSettings step;
  std::optional<Error> mine = prepare(read, step);
  StepRun run{stamp(step), !mine, {}, nullptr, measures()};
  if (!mine) {
    run.factors = {static_cast<float>(step.grad_scale_inv), step.device_grad_scale_inv,
                   step.grad_multiplier, step.found_inf};
    run.qk_logits = step.qk_logits;
  }
  enqueue(run);
  report.enqueue_seconds = seconds_since(start);
  wait();
  if (!mine) mine = function_error();
  if (const auto error = error_of([&] { conclude(step, mine, report); })) {
    // A rejected step leaves the optimizer usable; a broken communicator or a torn step does not.
    if (!leaves_usable(error->status())) fail(*error);
    throw *error;
  }
  if (run.health) take_health(report);
  measure(report, seconds_since(start));
  return report.skipped ? Status::kSkipped : Status::kOk;
}

std::optional<Error> Optimizer::function_error() const {
  const FunctionFailure& f = function_failure_;
  if (!f.function) return std::nullopt;
  return Error(Status::kCallback,
               cat("param '", settings_.params[static_cast<size_t>(f.param)].name, "': ",
                   f.function, " returned ", f.code, " (0 is success); nothing has changed"));
}

// What is late behind a caller's stream is late because of it.
std::optional<Error> Optimizer::cause_of(std::optional<Error> error) const {
  if (!error || error->status() != Status::kTimeout) return error;
  const auto theirs = current_->late();
  return theirs ? theirs : error;
}

void Optimizer::finish(const StepEnd& end, StepReport& report) {
  const Ballot& last = last_ballot(end);
  report.orthogonalized = last.orthogonalized;
  report.zero_matrices = last.zero_matrices;
  report.planned = static_cast<int64_t>(current_plan_->matrices().size());
  MUONRT_REQUIRE(
      judge(end) == StepResult::kCommitted, Status::kTorn, "an update was not finite on ",
      comm_->size() - last.consent,
      " ranks after the gradients had passed (eager commit); reload a checkpoint, or use "
      "MUONRT_COMMIT_ATOMIC");
  MUONRT_CHECK_INTERNAL(report.orthogonalized == report.planned, "orthogonalized ",
                        report.orthogonalized, ", planned ", report.planned);
  report.grad_norm = current_->guards().grad_norm();
  count_commit();
  report.step = steps_;
  report.clipped_heads = static_cast<int64_t>(clipped_.size());
}

void Optimizer::count_commit() {
  if (logits_ > 0)
    clipped_ = muonrt::clipped_heads(settings_, params_, current_->guards().logits());
  ++steps_;
  for (size_t i = 0; i < adam_steps_.size(); ++i) adam_steps_[i] += params_[i].active;
  passed_ = current_->outcome().verdict;
  passed_stamp_ = last_stamp_;
}

void Optimizer::explain_skip(StepReport& report) {
  report.skipped = true;
  report.orthogonalized = current_->outcome().verdict.orthogonalized;
  report.planned = static_cast<int64_t>(current_plan_->matrices().size());
  const Findings mine = findings();
  std::vector<Findings> all(static_cast<size_t>(comm_->size()));
  comm_->allgather(&mine, all.data(), sizeof mine);
  // An owner finds what its peers have sent it; the rank where it came from names the parameter.
  for (size_t r = 0; r < all.size(); ++r) {
    const bool first = report.nonfinite_rank < 0;
    const bool names = all[r].first_param >= 0 && report.nonfinite_param < 0;
    if (!all[r].nonfinite || !(first || names)) continue;
    report.nonfinite_rank = static_cast<int32_t>(r);
    report.nonfinite_param = all[r].first_param;
  }
}

void Optimizer::explain_rejection(const std::optional<Error>& mine, const StepSettings& step) {
  agree(*comm_, mine);
  // Nobody's arguments were bad, so they differ.
  Fingerprint table;
  table.add("step: number of committed steps", cat(steps_));
  table.add("step: lr", cat(step.lr));
  table.add("step: grad_scale_inv", cat(step.grad_scale_inv));
  const auto seen = static_cast<uint32_t>(current_->outcome().findings.factor);
  const auto host = std::bit_cast<uint32_t>(static_cast<float>(step.grad_scale_inv));
  table.add("step: factor of the gradients (device_grad_scale_inv, grad_multiplier)",
            cat(double{std::bit_cast<float>(seen ^ host)}));
  for (size_t i = 0; i < settings_.params.size(); ++i) {
    table.add(cat("step: param '", settings_.params[i].name, "' takes part"),
              cat(params_[i].active));
    table.add(cat("step: param '", settings_.params[i].name, "' has steps of AdamW"),
              cat(adam_steps_[i]));
  }
  for (size_t i = 0; i < settings_.groups.size(); ++i) {
    describe_scalars(table, cat("group ", i), settings_.groups[i]);
  }
  table.compare(*comm_);
  throw Error(Status::kInternal, "internal: a step was voted down without a reason");
}

void Optimizer::measure(StepReport& report, double seconds) const {
  double local = 0, products = 0, exchange = 0;
  for (const Span& span : current_->spans()) {
    const double took = static_cast<double>(span.end - span.begin) * 1e-9;
    if (span.work == Work::kLocal) local += took;
    if (span.work == Work::kProducts) products += took;
    if (span.on_comm()) exchange += took;
  }
  report.seconds = seconds;
  report.local_seconds = local;
  report.product_seconds = products;
  report.exchange_seconds = exchange;
  report.exposed_seconds = std::max(0.0, seconds - local - products);
  report.bytes_sent = comm_->bytes_sent() - bytes_before_;
}

}  // namespace muonrt
