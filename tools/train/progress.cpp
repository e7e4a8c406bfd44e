#include "train/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "train/format.hpp"

namespace muonrt::train {
namespace {

constexpr double kRedrawSeconds = 0.1;  // on a terminal
constexpr double kMemory = 0.9;         // of the running mean of a step's time

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string progress_line(const ProgressOptions& options, const ProgressReport& report,
                          double tokens_per_second, double seconds_left, int width) {
  // A line as long as the terminal is wide would wrap on some.
  const auto limit = width > 0 ? static_cast<size_t>(std::max(1, width - 1)) : std::string::npos;
  std::string line = options.label;
  auto add = [&](const std::string& part) {
    const std::string joined = (line.empty() ? "" : "  ") + part;
    if (line.size() + joined.size() <= limit) line += joined;
  };
  add("step " + std::to_string(report.step) + "/" + std::to_string(options.steps));
  if (!std::isnan(report.train_loss)) add("loss " + fixed(report.train_loss, 3));
  if (!std::isnan(report.val_loss)) add("val " + fixed(report.val_loss, 3));
  if (std::isfinite(seconds_left)) add(clock_time(seconds_left) + " left");
  if (std::isfinite(tokens_per_second)) add(abbreviated(tokens_per_second) + " tok/s");
  if (!std::isnan(report.optimizer_ms)) {
    std::string part = "optimizer " + fixed(report.optimizer_ms, 1) + " ms";
    if (!std::isnan(report.exposed_ms)) {
      part += " (" + fixed(report.exposed_ms, 1) + " exposed)";
    }
    add(part);
  }
  return line.substr(0, limit);
}

Progress::Progress(std::FILE* out, Screen screen, ProgressOptions options)
    : line_(out, screen), options_(std::move(options)), started_(steady_seconds()) {}

Progress::~Progress() { finish(); }

void Progress::update(const ProgressReport& report) {
  update_at(report, steady_seconds() - started_);
}

void Progress::update_at(const ProgressReport& report, double now) {
  const double previous = first_step_ < 0 ? 0.0 : last_time_;
  const int64_t previous_step = first_step_ < 0 ? options_.first_step : last_.step;
  if (report.step > previous_step) {
    const double each = (now - previous) / static_cast<double>(report.step - previous_step);
    step_seconds_ =
        std::isnan(step_seconds_) ? each : kMemory * step_seconds_ + (1.0 - kMemory) * each;
  }
  if (first_step_ < 0) first_step_ = report.step;
  last_ = report;
  last_time_ = now;
  const double interval = line_.screen().terminal ? kRedrawSeconds : options_.line_seconds;
  if (now - shown_time_ < interval) return;
  shown_time_ = now;
  shown_step_ = report.step;
  line_.show(line());
}

std::string Progress::line() const {
  const int width = line_.screen().terminal ? line_.screen().width : 0;
  const double tokens = static_cast<double>(options_.tokens_per_step) / step_seconds_;
  const auto steps = static_cast<double>(options_.steps - last_.step + options_.later_steps);
  return progress_line(options_, last_, tokens, steps * step_seconds_, width);
}

void Progress::message(const std::string& line) { line_.print(line); }

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (first_step_ < 0) return;
  if (line_.screen().terminal || shown_step_ != last_.step) line_.show(line());
  line_.keep();
}

}  // namespace muonrt::train
