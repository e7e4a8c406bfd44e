#include "train/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace muonrt::train {
namespace {

constexpr double kRedrawSeconds = 0.1;  // interval on a terminal
constexpr double kLineSeconds = 5.0;    // interval in a log file

}  // namespace

Progress::Progress(std::FILE* out, tool::Screen screen, Run run)
    : line_(out, screen), run_(std::move(run)) {
  last_.step = run_.first_step;
}

Progress::~Progress() {
  if (last_.step == run_.first_step) return;
  if (line_.screen().terminal || shown_step_ != last_.step) show();
  line_.keep();
}

void Progress::update(const CurvePoint& point) {
  const double validation = std::isnan(point.val_loss) ? last_.val_loss : point.val_loss;
  last_ = point;
  last_.val_loss = validation;
  if (point.seconds - shown_ < (line_.screen().terminal ? kRedrawSeconds : kLineSeconds)) return;
  show();
}

void Progress::show() {
  shown_ = last_.seconds;
  shown_step_ = last_.step;
  const double step = last_.seconds / static_cast<double>(last_.step - run_.first_step);
  const auto left = std::llround(
      std::min(step * static_cast<double>(run_.steps - last_.step + run_.later_steps), 1e9));
  std::string text = fmt::format("{}  step {}/{}  loss {:.3f}", run_.label, last_.step, run_.steps,
                                 last_.train_loss);
  if (!std::isnan(last_.val_loss)) text += fmt::format("  val {:.3f}", last_.val_loss);
  text += fmt::format("  {}:{:02}:{:02} left  {:.0f} tokens/s", left / 3600, left / 60 % 60,
                      left % 60, static_cast<double>(run_.tokens_per_step) / step);
  line_.show(text);
}

}  // namespace muonrt::train
