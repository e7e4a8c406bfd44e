#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace muonrt::train {

/// Seconds of a steady clock.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The values after a step; NaN: not measured in this step.
struct CurvePoint {
  int64_t step = 0;
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // mean of the batch, nats per byte
  double val_loss = std::numeric_limits<double>::quiet_NaN();
  int64_t tokens = 0;    // processed so far
  double seconds = 0.0;  // since the start of the run
};

/// The run of one optimizer.
struct Curve {
  std::string optimizer;
  std::vector<CurvePoint> points;
};

/// The table: a header line `step,optimizer,train_loss,val_loss,tokens,seconds`, then a line for
/// each point; empty fields where nothing was measured.
std::string curves_csv(const std::vector<Curve>& curves);

/// The picture: validation losses as strong lines, training losses as faint ones, a colour for each
/// optimizer. The steep first tenth of the steps may leave the picture at the top.
std::string curves_svg(const std::vector<Curve>& curves, const std::string& title,
                       const std::string& subtitle);

}  // namespace muonrt::train
