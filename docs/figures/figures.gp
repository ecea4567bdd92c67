# Makes the PNG files of the CSV files beside it: gnuplot figures.gp
set datafile separator ','
set datafile missing ''
set style fill solid 0.8 border -1
set grid ytics lc rgb '#dddddd'
set key outside top center horizontal

set terminal pngcairo noenhanced size 800,600 font 'sans,11' background rgb 'white'
set output 'fig07-paper-rectangle-1.png'
set title 'Fig. 7: rectangle on 1 GPU, by the rules of the paper'
set xlabel 'deadline, ms'
set ylabel 'rate, Mbit/s'
set xtics auto
set xrange [0:110]
set yrange [0:3]
set object 1 rectangle from 27,0 to 81,1.8 front fs empty border rgb 'black' lw 2
plot for [g=0:1] 'fig07-paper-rectangle-1.csv' using 2:($3 == g ? $1 : NaN) with points pt 7 ps 0.25 lc g+1 title g == 0 ? 'CPU' : sprintf('GPU %d', g - 1), NaN with lines lc rgb 'black' lw 2 title 'rectangle that the paper prints'
unset object 1
set xrange [*:*]

set terminal pngcairo noenhanced size 1500,360 font 'sans,11' background rgb 'white'
set output 'fig10-workloads.png'
set title ''
set multiplot layout 1,5 title 'Fig. 10: streams of the workloads'
set xlabel 'rate, Mbit/s'
set ylabel 'deadline, ms'
set xtics auto
set yrange [0:45]
set xrange [0:7]
set title 'const'
plot 'fig10-workloads.csv' using (strcol(1) eq 'const' ? $2 : NaN):3 with points pt 7 ps 0.3 notitle
set title 'uni'
plot 'fig10-workloads.csv' using (strcol(1) eq 'uni' ? $2 : NaN):3 with points pt 7 ps 0.3 notitle
set title 'norm'
plot 'fig10-workloads.csv' using (strcol(1) eq 'norm' ? $2 : NaN):3 with points pt 7 ps 0.3 notitle
set title 'norm2'
plot 'fig10-workloads.csv' using (strcol(1) eq 'norm2' ? $2 : NaN):3 with points pt 7 ps 0.3 notitle
set title 'exp'
plot 'fig10-workloads.csv' using (strcol(1) eq 'exp' ? $2 : NaN):3 with points pt 7 ps 0.3 notitle
unset multiplot

set terminal pngcairo noenhanced size 600,480 font 'sans,11' background rgb 'white'
set output 'fig12b.png'
set title 'Fig. 12b: 200 streams of exp'
set yrange [0:*]
plot 'fig12b.csv' using 1:2 with points pt 7 ps 0.6 notitle
set xrange [*:*]

set terminal pngcairo noenhanced size 900,520 font 'sans,11' background rgb 'white'
set output 'fig10-paper.png'
set title 'Fig. 10: methods on 2 GPUs, by the rules of the paper'
set style data histograms
set style histogram clustered gap 1
set xlabel 'workload'
set ylabel 'Gbit/s'
set yrange [0:*]
set xtics auto
plot for [m=2:6] 'fig10-paper.csv' using m:xtic(1) title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig11-paper.png'
set title 'Fig. 11: const, CPU and GPUs, by the rules of the paper'
set xlabel 'GPUs'
set ylabel 'Gbit/s'
set xtics 1
set yrange [0:*]
plot for [m=2:6] 'fig11-paper.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12a-total-paper.png'
set title 'Fig. 12a: exp, CPU and GPUs, by the rules of the paper'
set xlabel 'GPUs'
set ylabel 'Gbit/s'
set xtics 1
set yrange [0:*]
plot for [m=2:6] 'fig12a-total-paper.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12a-speedup-paper.png'
set title 'Fig. 12a: exp, GPUs alone, as a multiple of one, by the rules of the paper'
set xlabel 'GPUs'
set ylabel 'times one GPU'
set xtics 1
set yrange [0:*]
one = 1
plot for [m=2:5] 'fig12a-gpu-paper.csv' using 1:(one = int($0) == 0 ? column(m) : one, column(m) / one) with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12c-paper.png'
set title 'Fig. 12c: exp, shortest deadline on a GPU, by the rules of the paper'
set xlabel 'GPUs'
set ylabel 'ms'
set xtics 1
set yrange [0:*]
plot for [m=2:5] 'fig12c-paper.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 1500,420 font 'sans,11' background rgb 'white'
set output 'bound-paper.png'
set title ''
set multiplot layout 1,5 title 'Share of the fluid bound, by the rules of the paper'
set xlabel 'GPUs'
set ylabel '%'
set xtics 1
set yrange [0:100]
set key at graph 0.95,0.35 right top vertical samplen 1
set title 'const'
plot for [m=3:6] 'bound-paper.csv' using (strcol(1) eq 'const' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
unset key
set title 'uni'
plot for [m=3:6] 'bound-paper.csv' using (strcol(1) eq 'uni' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'norm'
plot for [m=3:6] 'bound-paper.csv' using (strcol(1) eq 'norm' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'norm2'
plot for [m=3:6] 'bound-paper.csv' using (strcol(1) eq 'norm2' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'exp'
plot for [m=3:6] 'bound-paper.csv' using (strcol(1) eq 'exp' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
unset multiplot
set key outside top center horizontal

set terminal pngcairo noenhanced size 900,520 font 'sans,11' background rgb 'white'
set output 'fig10-server.png'
set title 'Fig. 10: methods on 2 GPUs, by the rules of the server'
set style data histograms
set style histogram clustered gap 1
set xlabel 'workload'
set ylabel 'Gbit/s'
set yrange [0:*]
set xtics auto
plot for [m=2:6] 'fig10-server.csv' using m:xtic(1) title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig11-server.png'
set title 'Fig. 11: const, CPU and GPUs, by the rules of the server'
set xlabel 'GPUs'
set ylabel 'Gbit/s'
set xtics 1
set yrange [0:*]
plot for [m=2:6] 'fig11-server.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12a-total-server.png'
set title 'Fig. 12a: exp, CPU and GPUs, by the rules of the server'
set xlabel 'GPUs'
set ylabel 'Gbit/s'
set xtics 1
set yrange [0:*]
plot for [m=2:6] 'fig12a-total-server.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12a-speedup-server.png'
set title 'Fig. 12a: exp, GPUs alone, as a multiple of one, by the rules of the server'
set xlabel 'GPUs'
set ylabel 'times one GPU'
set xtics 1
set yrange [0:*]
one = 1
plot for [m=2:5] 'fig12a-gpu-server.csv' using 1:(one = int($0) == 0 ? column(m) : one, column(m) / one) with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fig12c-server.png'
set title 'Fig. 12c: exp, shortest deadline on a GPU, by the rules of the server'
set xlabel 'GPUs'
set ylabel 'ms'
set xtics 1
set yrange [0:*]
plot for [m=2:5] 'fig12c-server.csv' using 1:m with linespoints lw 2 pt m+4 title columnheader(m)

set terminal pngcairo noenhanced size 1500,420 font 'sans,11' background rgb 'white'
set output 'bound-server.png'
set title ''
set multiplot layout 1,5 title 'Share of the fluid bound, by the rules of the server'
set xlabel 'GPUs'
set ylabel '%'
set xtics 1
set yrange [0:100]
set key at graph 0.95,0.35 right top vertical samplen 1
set title 'const'
plot for [m=3:6] 'bound-server.csv' using (strcol(1) eq 'const' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
unset key
set title 'uni'
plot for [m=3:6] 'bound-server.csv' using (strcol(1) eq 'uni' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'norm'
plot for [m=3:6] 'bound-server.csv' using (strcol(1) eq 'norm' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'norm2'
plot for [m=3:6] 'bound-server.csv' using (strcol(1) eq 'norm2' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
set title 'exp'
plot for [m=3:6] 'bound-server.csv' using (strcol(1) eq 'exp' ? $2 : NaN):m with linespoints lw 2 pt m+4 title columnheader(m)
unset multiplot
set key outside top center horizontal
