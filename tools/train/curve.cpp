#include "train/curve.hpp"

#include <cmath>

#include "train/format.hpp"

namespace muonrt::train {
namespace {

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string field(double value) { return std::isnan(value) ? std::string() : shortest(value); }

}  // namespace

std::string curves_csv(const std::vector<Curve>& curves) {
  std::string out = "step,optimizer,run,train_loss,val_loss,tokens,seconds\n";
  for (const Curve& curve : curves) {
    const std::string names = field(curve.optimizer) + "," + field(curve.run);
    for (const CurvePoint& point : curve.points) {
      out += std::to_string(point.step) + "," + names + "," + field(point.train_loss) + "," +
             field(point.val_loss) + "," + std::to_string(point.tokens) + "," +
             fixed(point.seconds, 3) + "\n";
    }
  }
  return out;
}

}  // namespace muonrt::train
