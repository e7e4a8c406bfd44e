#pragma once

#include <string>

namespace muonrt::tool::svg {

/// The beginning of a picture on a white ground; svg::kEnd ends it.
std::string begin(double width, double height, double font_size, const char* fill);
constexpr const char* kEnd = "</svg>\n";

// Attributes are written as they are: "stroke=\"#555555\"".

/// What is special in `content` is escaped.
std::string text(double x, double y, const std::string& attributes, const std::string& content);
std::string line(double x1, double y1, double x2, double y2, const std::string& attributes);
/// With two decimals, so that tiles meet.
std::string rect(double x, double y, double width, double height,
                 const std::string& attributes = "");
std::string polyline(const std::string& points, const std::string& attributes);

}  // namespace muonrt::tool::svg
