#include "train/curve.hpp"

#include <catch2/catch.hpp>
#include <cmath>

using namespace muonrt::train;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("train curve: table and picture hold every point, and nothing where none is known",
          "[unit][train]") {
  const double none = std::nan("");
  const std::vector<Curve> curves = {
      {"muon", {{10, 2.5, none, 20480, 1.25}, {20, 0.1, 2.25, 40960, 2.5}}},
      {"adamw", {{1, none, none, 0, 0.0}, {2, INFINITY, INFINITY, 1, 1.0}, {20, 2.5, 2.75, 5, 6}}}};
  CHECK(curves_csv(curves) ==
        "step,optimizer,train_loss,val_loss,tokens,seconds\n"
        "10,muon,2.5,,20480,1.250\n"
        "20,muon,0.1,2.25,40960,2.500\n"
        "1,adamw,,,0,0.000\n"
        "2,adamw,inf,inf,1,1.000\n"
        "20,adamw,2.5,2.75,5,6.000\n");
  const std::string svg = curves_svg(curves, "A < B & C", "sub");
  CHECK(count(svg, "<polyline") == 2 * 2);
  CHECK(count(svg, ">A &lt; B &amp; C<") == 1);
  CHECK(count(svg, ">muon: validation, 2.250 at the end<") == 1);
  CHECK(count(svg, ">adamw: validation, 2.750 at the end<") == 1);
  for (const auto& few : {curves, std::vector<Curve>{}, std::vector<Curve>{{"muon", {}}},
                          std::vector<Curve>{{"muon", {{1, none, 2.0, 1, 1.0}}}}}) {
    const std::string picture = curves_svg(few, "t", "s");
    CHECK(count(picture, "</svg>") == 1);
    CHECK(count(picture, "nan") + count(picture, "inf") == 0);
  }
}
