#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace muonrt::train {

/// Returns the time in seconds on a monotonic clock.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The values after a step. NaN means that the value was not measured in this step.
struct CurvePoint {
  int64_t step = 0;
  // mean over the batch, in nats per byte
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double val_loss = std::numeric_limits<double>::quiet_NaN();
  int64_t tokens = 0;    // number of tokens processed so far
  double seconds = 0.0;  // time since the start of the run
};

/// The losses of one optimizer during its run.
struct Curve {
  std::string optimizer;
  std::vector<CurvePoint> points;
};

/// Returns a CSV table: the header `step,optimizer,train_loss,val_loss,tokens,seconds`, and a line
/// for each point. If a value was not measured, its field is empty.
std::string curves_csv(const std::vector<Curve>& curves);

/// Draws the validation losses as strong lines and the training losses as faint lines, with one
/// color for each optimizer. Losses in the first tenth of the steps can be cut off at the top.
std::string curves_svg(const std::vector<Curve>& curves, const std::string& title,
                       const std::string& subtitle);

}  // namespace muonrt::train
