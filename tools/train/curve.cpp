#include "train/curve.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

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

[[noreturn]] void fail(const std::string& path) {
  throw std::runtime_error("cannot write '" + path + "' (" + std::strerror(errno) +
                           "); choose a folder that can be written to");
}

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

void write_text_file(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".part";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << content;
    file.flush();
    if (!file) fail(path);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    errno = error.value();
    fail(path);
  }
}

}  // namespace muonrt::train
