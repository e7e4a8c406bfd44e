#include "base/text.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/optimizer.hpp"

namespace muonrt {

bool Optimizer::measures() const {
  return settings_.health_every > 0 && (steps_ + 1) % settings_.health_every == 0;
}

// The step is what it is by now: that its statistics fail is the next step's error.
void Optimizer::take_health(StepReport& report) {
  const auto error = error_of([&] { current_->health()->finish(params_, !report.skipped); });
  if (error) {
    comm_->abort(error->status(), error->message());
    poison_ =
        Error(error->status(), cat("health statistics of the step before: ", error->message()));
    return;
  }
  report.health = true;
  health_.step = steps_;
  health_.skipped = report.skipped;
  health_.matrices = current_->health()->matrices();
  health_.difference = current_->health()->difference();
}

}  // namespace muonrt
