#include "train/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "opt_json/health.hpp"
#include "train/model/gpt.hpp"
#include "train/model/init.hpp"
#include "train/model/workspace.hpp"
#include "train/optimizer.hpp"
#include "train/progress.hpp"
#include "train/shards.hpp"
#include "train/step_trace.hpp"

namespace muonrt::train {

namespace {

std::atomic<int> stop{0};  // number of the signal that stops all runs

/// The number of sequences in a block of the batch. The blocks are the same for any number of
/// ranks, and their gradients are added exactly, so the results are bitwise identical.
constexpr int64_t kBlock = 2;

/// The full tensors of a model, in one allocation.
template <class T>
struct Tensors {
  explicit Tensors(const std::vector<ParamSpec>& specs)
      : block(static_cast<size_t>(total_elements(specs))) {
    int64_t at = 0;
    for (const ParamSpec& spec : specs) {
      pointers.push_back(block.data() + at);
      at += spec.elements();
    }
  }
  std::vector<T> block;
  std::vector<T*> pointers;
};

/// One run on one rank.
class Trainer {
 public:
  Trainer(Comm& comm, const TrainMesh& mesh, const Options& options, const RunPlan& plan,
          const Corpus& corpus, const Place& place, CurveLog* log)
      : comm_(comm),
        place_(place),
        log_(log),
        options_(options),
        plan_(plan),
        corpus_(corpus),
        config_(preset(options.preset)),
        settings_(plan.optimizer, config_, options.qk_clip, options.steps),
        gpt_(config_),
        work_(config_, kBlock),
        rank_(comm.rank()),
        ranks_(comm.size()),
        shards_(mesh, gpt_.params(), rank_),
        full_(gpt_.params()),
        grads_(gpt_.params()),
        sums_(gpt_.params()),
        local_(static_cast<size_t>(shards_.local_elements())),
        local_grad_(local_.size()) {
    for (size_t i = 0; i < full_.pointers.size(); ++i) {
      init_param(config_, plan.seed, static_cast<int64_t>(i), full_.pointers[i]);
    }
    shards_.extract(full_.pointers.data(), local_.data());
    if (place.make_memory) {
      memory_ = place.make_memory();
      far_ = memory_->make(shards_.local_elements());
      far_grad_ = memory_->make(shards_.local_elements());
      far_logits_ = memory_->make(config_.layers * config_.heads);
      memory_->put(far_, local_);
    }
    optimizer_ = make_optimizer(mesh);
    if (!options.resume.empty()) load();
  }

  RunResult run(std::FILE* out);

 private:
  struct Times {
    double start = 0.0, busy = 0.0, optimizer = 0.0, exposed = 0.0;  // seconds
  };
  std::unique_ptr<Optimizer> make_optimizer(const TrainMesh& mesh);
  int64_t sum(int64_t mine);
  int64_t add_gradients(int64_t step, int64_t block);
  double train_step(int64_t step, muonrt_step_report_t& report);
  double validate();
  CurvePoint advance(int64_t step, RunResult& result, Times& times, tool::HealthLog& health);
  std::unique_ptr<Progress> progress(std::FILE* out) const;
  double rate(int64_t step) const;
  void set_groups(int64_t step);
  muonrt_step_report_t step_optimizer(int64_t step);
  void load();
  void save(int64_t steps);
  float largest(float mine);
  bool anyone_stops();
  int64_t share(int64_t total, int rank) const { return total * rank / ranks_; }

  Comm& comm_;
  const Place& place_;
  CurveLog* log_;
  const Options& options_;
  const RunPlan& plan_;
  const Corpus& corpus_;
  Config config_;
  TrainOptimizer settings_;
  Gpt gpt_;
  Workspace work_;
  int rank_, ranks_;
  Shards shards_;
  Tensors<float> full_, grads_;
  Tensors<int64_t> sums_;
  std::vector<float> local_, local_grad_, logits_;
  std::unique_ptr<DeviceMemory> memory_;  // for the optimizer's tensors; null: host memory
  float *far_ = nullptr, *far_grad_ = nullptr, *far_logits_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t first_step_ = 0;
  int64_t saved_param_bytes_ = 0;
  StepTrace trace_;
};

std::unique_ptr<Optimizer> Trainer::make_optimizer(const TrainMesh& mesh) {
  const std::vector<ParamSpec>& specs = gpt_.params();
  std::vector<std::vector<muonrt_placement_t>> placements;
  std::vector<std::vector<int64_t>> local_shapes;
  std::vector<muonrt_layout_t> layouts(specs.size());
  std::vector<muonrt_param_t> params(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    placements.push_back(mesh.placements(static_cast<int>(specs[i].shape.size())));
    local_shapes.push_back(shards_.local_shape(index));
    muonrt_layout_init(&layouts[i]);
    layouts[i].mesh = &mesh.c_mesh();
    muonrt_param_t& p = params[i] = param();
    p.name = specs[i].name.c_str();
    settings_.fill(p, index);
    p.ndim = static_cast<int32_t>(specs[i].shape.size());
    p.shape = specs[i].shape.data();
    p.data = (memory_ ? far_ : local_.data()) + shards_.local_offset(index);
    p.grad = (memory_ ? far_grad_ : local_grad_.data()) + shards_.local_offset(index);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    layouts[i].placements = placements[i].data();
    params[i].layout = &layouts[i];
    params[i].local_shape = local_shapes[i].data();
  }
  tool::OptimizerOptions settings = settings_.options();
  settings.debug.trace = options_.traces();
  if (place_.set_device) place_.set_device(settings);
  Comm& comm = place_.comm ? *place_.comm : comm_;
  return std::make_unique<Optimizer>(comm, settings.linked(), settings_.groups(0), params);
}

int64_t Trainer::sum(int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(ranks_));
  comm_.allgather(all.data(), &mine, sizeof mine);
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

float Trainer::largest(float mine) {
  std::vector<float> all(static_cast<size_t>(ranks_));
  comm_.allgather(all.data(), &mine, sizeof mine);
  return *std::max_element(all.begin(), all.end());
}

bool Trainer::anyone_stops() { return sum(stop != 0) > 0; }

// Returns the factor that multiplies the learning rates of all parameters in a step.
double Trainer::rate(int64_t step) const {
  const double peak = plan_.lr / settings_.lr();
  if (settings_.has_lr_schedule()) return peak;
  const double warm = std::max(1.0, options_.warmup * static_cast<double>(options_.steps));
  const double at = static_cast<double>(step) + 1.0;
  if (at < warm) return peak * at / warm;
  const double left = (static_cast<double>(options_.steps) - at) /
                      std::max(1.0, static_cast<double>(options_.steps) - warm);
  return peak * (options_.final_lr + (1.0 - options_.final_lr) * left);
}

// Adds the gradient of one block of the global batch to the sums. Returns the block's part of the
// mean loss.
int64_t Trainer::add_gradients(int64_t step, int64_t block) {
  const int64_t first = block * kBlock, count = std::min(kBlock, options_.batch - first);
  const auto tokens = static_cast<double>(options_.batch * config_.context);
  const auto batch = corpus_.train_batch(plan_.seed, step, first, count);
  const double loss =
      gpt_.forward_backward(full_.pointers.data(), batch.data(), count,
                            static_cast<float>(1.0 / tokens), grads_.pointers.data(), work_);
  bool fits = Sum::fits(loss / tokens);
  for (const float g : grads_.block) fits = fits && Sum::fits(g);
  if (!fits) {
    throw std::runtime_error(
        "step " + std::to_string(step + 1) + " of " + plan_.optimizer +
        ": a gradient is not finite or is above 1024; lower the learning rate");
  }
  for (size_t i = 0; i < grads_.block.size(); ++i) sums_.block[i] += Sum::of(grads_.block[i]);
  return Sum::of(loss / tokens);
}

/// Sets the groups for this step if they differ between steps, for example because of a momentum
/// schedule.
void Trainer::set_groups(int64_t step) {
  if (settings_.constant()) return;
  const auto groups = settings_.groups(step);
  for (size_t g = 0; g < groups.size(); ++g) {
    optimizer_->set_group(static_cast<int32_t>(g), groups[g]);
  }
}

muonrt_step_report_t Trainer::step_optimizer(int64_t step) {
  set_groups(step);
  muonrt_step_args_t args = step_args();
  const std::vector<double> rates(settings_.groups(step).size(), rate(step));
  args.group_lrs = rates.data();
  args.n_group_lrs = static_cast<int32_t>(rates.size());
  args.grad_scale_inv = settings_.config().grad_scale_inv.value_or(1.0);
  logits_.clear();
  for (const int32_t layer : settings_.clipped_layers()) {
    const auto first = work_.attention_max.begin() + layer * config_.heads;
    logits_.insert(logits_.end(), first, first + config_.heads);
  }
  if (!logits_.empty()) {
    if (memory_) memory_->put(far_logits_, logits_);
    args.qk_logits = memory_ ? far_logits_ : logits_.data();
    args.n_qk_logits = static_cast<int64_t>(logits_.size());
  }
  if (!memory_) return optimizer_->step(args);
  memory_->put(far_grad_, local_grad_);
  const muonrt_step_report_t report = optimizer_->step(args);
  memory_->get(local_, far_);
  return report;
}

/// Loads the optimizer. A checkpoint contains no other state, because batches depend only on seed
/// and step.
void Trainer::load() {
  // First set the groups as in the saved step. Notes then mention a setting only if the file has
  // changed it.
  set_groups(std::max<int64_t>(tool::saved_steps(options_.resume) - 1, 0));
  optimizer_->load(options_.resume);
  if (memory_) memory_->get(local_, far_);
  first_step_ = optimizer_->steps();
}

void Trainer::save(int64_t steps) {
  if (const int64_t committed = optimizer_->steps(); committed != steps) {
    throw std::runtime_error("--save: " + std::to_string(steps - committed) + " of " +
                             std::to_string(steps) + " steps of " + plan_.optimizer +
                             " were skipped, and a checkpoint counts only committed steps; "
                             "change the optimizer's settings, or train without --save");
  }
  muonrt_save_options_t how;
  muonrt_save_options_init(&how);
  how.overwrite = options_.overwrite;
  optimizer_->save(options_.save, &how);
  saved_param_bytes_ = sum(optimizer_->counters().saved_param_bytes);
}

double Trainer::train_step(int64_t step, muonrt_step_report_t& report) {
  const int64_t blocks = (options_.batch + kBlock - 1) / kBlock;
  shards_.gather(comm_, local_.data(), full_.pointers.data());
  std::fill(sums_.block.begin(), sums_.block.end(), 0);
  work_.forget_attention_max();
  int64_t loss = 0;
  for (int64_t b = share(blocks, rank_); b < share(blocks, rank_ + 1); ++b) {
    loss += add_gradients(step, b);
  }
  shards_.reduce_scatter(comm_, sums_.pointers.data(), local_grad_.data());
  report = step_optimizer(step);
  return Sum::value(sum(loss));
}

double Trainer::validate() {
  const int64_t blocks = (options_.eval_windows + kBlock - 1) / kBlock;
  const auto tokens = static_cast<double>(options_.eval_windows * config_.context);
  shards_.gather(comm_, local_.data(), full_.pointers.data());
  int64_t loss = 0;
  for (int64_t b = share(blocks, rank_); b < share(blocks, rank_ + 1); ++b) {
    const int64_t first = b * kBlock, count = std::min(kBlock, options_.eval_windows - first);
    const auto windows = corpus_.validation_batch(first, count, options_.eval_windows);
    loss += Sum::of(gpt_.evaluate(full_.pointers.data(), windows.data(), count, work_) / tokens);
  }
  return Sum::value(sum(loss));
}

std::unique_ptr<Progress> Trainer::progress(std::FILE* out) const {
  if (rank_ != 0 || !out) return nullptr;
  return std::make_unique<Progress>(
      out, tool::detect_screen(out),
      Progress::Run{plan_.optimizer, first_step_, options_.steps, plan_.later_steps,
                    options_.batch * config_.context});
}

/// Runs one step. If due, saves a checkpoint and validates the model. Adds the times to `times`.
CurvePoint Trainer::advance(int64_t step, RunResult& result, Times& times,
                            tool::HealthLog& health) {
  muonrt_step_report_t report;
  const double began = now();
  result.train_loss = train_step(step, report);
  times.busy += now() - began;
  times.optimizer += report.seconds;
  times.exposed += report.exposed_seconds;
  if (report.large_update_param >= 0) {
    const std::string& name = gpt_.params()[static_cast<size_t>(report.large_update_param)].name;
    result.warning = tool::large_update_text(report, name, "--lr", plan_.lr);
  }
  if (report.has_health) health.add(optimizer_->health(), step + 1);
  result.max_logits.push_back(
      largest(*std::max_element(work_.attention_max.begin(), work_.attention_max.end())));
  result.clipped_heads += report.clipped_heads;
  result.steps = step + 1;
  result.interrupted = anyone_stops();
  const bool last = result.steps == options_.steps || result.interrupted;
  const auto traced = static_cast<int64_t>(StepTrace::kSteps);
  if (options_.traces() && (last || result.steps > options_.steps - traced))
    trace_.add(comm_, *optimizer_);
  CurvePoint point{result.steps, result.train_loss, std::nan(""),
                   result.steps * options_.batch * config_.context, now() - times.start};
  // Log the point before saving the checkpoint, so that a run that continues from the checkpoint
  // has this step in its curve.
  if (log_) log_->add(point);
  if (!options_.save.empty() && (last || result.steps % options_.save_every == 0)) {
    save(result.steps);
  }
  if (last || result.steps % options_.eval_every == 0) {
    result.val_loss = point.val_loss = validate();
    if (log_) log_->add(point);
  }
  return point;
}

RunResult Trainer::run(std::FILE* out) {
  RunResult result;
  result.curve.optimizer = plan_.optimizer;
  const int64_t tokens = options_.batch * config_.context;
  std::unique_ptr<Progress> shown = progress(out);
  Times times{.start = now()};
  std::vector<std::string> names;
  for (const ParamSpec& spec : gpt_.params()) names.push_back(spec.name);
  tool::HealthLog health(names);
  result.first_step = result.steps = first_step_;
  if (rank_ == 0 && out) std::fputs(optimizer_->load_notes().c_str(), out);
  result.val_loss = validate();
  result.curve.points.push_back(
      {first_step_, std::nan(""), result.val_loss, first_step_ * tokens, 0.0});
  if (log_) {
    log_->begin(plan_.optimizer, first_step_);
    log_->add(result.curve.points.back());
  }
  if (!options_.save.empty() && first_step_ == options_.steps) save(first_step_);
  for (int64_t step = first_step_; step < options_.steps && !result.interrupted; ++step) {
    const bool warned = !result.warning.empty();
    result.curve.points.push_back(advance(step, result, times, health));
    if (rank_ == 0 && out && !warned && !result.warning.empty())
      fmt::print(out, "muonrt: warning: {}: {}\n", plan_.optimizer, result.warning);
    if (shown) shown->update(result.curve.points.back());
  }
  shown.reset();
  result.saved_param_bytes = saved_param_bytes_;
  if (const auto done = static_cast<double>(result.steps - first_step_); done > 0) {
    result.tokens_per_second = done * static_cast<double>(tokens) / times.busy;
    result.optimizer_ms = times.optimizer / done * 1e3;
    result.exposed_ms = times.exposed / done * 1e3;
  }
  if (options_.traces()) result.trace = trace_.gather(comm_);
  if (rank_ == 0) {
    result.plan = optimizer_->describe_plan();
    result.health = health.summary();
    result.health_json = health.json_list();
  }
  return result;
}

}  // namespace

void request_stop(int signal) {
  int none = 0;
  stop.compare_exchange_strong(none, signal);
}
int stop_requested() { return stop; }

RunResult run_training(Comm& comm, const TrainMesh& mesh, const Options& options,
                       const RunPlan& plan, const Corpus& corpus, std::FILE* out,
                       const Place& place, CurveLog* log) {
  return Trainer(comm, mesh, options, plan, corpus, place, log).run(out);
}

}  // namespace muonrt::train
