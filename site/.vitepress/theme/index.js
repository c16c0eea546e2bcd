// The default theme with system fonts and the colours of the console.

import DefaultTheme from "vitepress/theme-without-fonts";
import "./style.css";

export default DefaultTheme;
